"""Who can say in which module a value was born that is not finite: found by an entry point, not by an import."""

from collections.abc import Callable
from importlib.metadata import entry_points

from torch import Tensor, nn

from nsa.train.failures import RefusedError

GROUP = "nsa.tracers"
Tracer = Callable[[nn.Module, Callable[[], Tensor]], str]
"""Called with the model and a function that computes the loss of one micro-batch again, whose backward pass it may
run; returns one sentence that names module and operation, or nothing when all it saw was finite."""


def installed_tracer() -> Tracer | None:
    """The first of the entry points in the group `nsa.tracers`, by name; raises RefusedError for a broken one."""
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            found: Tracer = point.load()
        except (ImportError, AttributeError) as error:
            raise RefusedError(f"the tracer {point.name} ({point.value}) cannot be loaded: {error}") from error
        return found
    return None


def ask(tracer: Tracer, model: nn.Module, compute: Callable[[], Tensor]) -> str:
    """What a tracer says; one that breaks must not cost what the run has to say itself."""
    try:
        return tracer(model, compute)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        return f"the tracer broke: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
