"""Says where a training step that is not finite was born; found by `nsa.train` as the entry point `nsa.tracers`.

The step is computed again under a tracer, several times. Weights, buffers, gradients, random states, modes and what
modules keep beside these are the same afterwards, bit for bit.
"""

import random
import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, NonfiniteOrigin
from nsa_doctor.core.text import escaped
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins
from nsa_doctor.probes.tensors.finite import holds_nonfinite

_TARGETS = {OUTPUT: "the loss", GRADIENTS: "a gradient"}


def trace(model: nn.Module, compute: Callable[[], Tensor]) -> str:
    """One sentence: what was born, in which module, by which operation, on which line, and out of what.

    model: names modules and parameters. compute: the loss of one micro-batch. Empty when all of it was finite.
    """
    start = _Start(model)

    def rerun(tracer: Tracer) -> Returned:
        start.restore()
        tracer.know(model, torch.empty(0))
        with tracer.phase("forward"):
            loss = compute()
        if holds_nonfinite(loss.detach()) or not loss.requires_grad:
            return [(OUTPUT, {OUTPUT: loss})]
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        with tracer.phase("backward"):  # into no parameter's .grad, past whoever waits there for it
            gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return [(GRADIENTS, {name: each for name, each in zip(named, gradients, strict=True) if each is not None})]

    with preserved_state(), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = origins(rerun, FrameFilter())
        finally:
            start.restore()
    return "" if found is None else _sentence(*found)


class _Start:
    """What every pass begins with: a cured weight was made finite, a buffer moved, random numbers were drawn."""

    def __init__(self, model: nn.Module) -> None:
        self._held = ModuleState(model, with_parameters=True)
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        """Put back what differs in a bit."""
        self._held.restore()
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _sentence(target: str, found: tuple[NonfiniteOrigin, ...]) -> str:
    others = len(found) - 1
    more = f"; {others} more, the next in {_where(found[1])}" if others else ""
    return escaped(f"{_described(found[0])}; it reaches {_TARGETS[target]}{more}")


def _described(origin: NonfiniteOrigin) -> str:
    """`NaN is born in blocks.0.attention (NSAttention) in sqrt at file:line, forward, out of finite inputs`."""
    if origin.operation.startswith(("parameter ", "buffer ")):
        module = origin.place.module_text
        return f"{origin.operation}{f' of {module}' if module else ''} held {origin.value} before the step"
    detail = origin.detail or "out of finite inputs"
    return f"{origin.value} is born in {_where(origin)}, in the {origin.phase} pass: {detail}"


def _where(origin: NonfiniteOrigin) -> str:
    line = f" at {origin.place.line_text}" if origin.place.line_text else ""
    module = f"{origin.place.module_text}, " if origin.place.module_text else ""
    return f"{module}{origin.operation}{line}"
