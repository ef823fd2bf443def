"""From `fn:package.module:function` and a convention to something to examine."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.functions.known import convention
from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.function_spec import function_spec
from nsa_doctor.core.like import FUNCTION
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.functions.binding import bound, check_complete, check_fits, parameters_of, without_arguments
from nsa_doctor.probes.functions.calling import Asking, ask, laid_out
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.shapes import ordinary
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.function import FunctionSubject
from nsa_doctor.subject.named import import_named


@dataclass(frozen=True, kw_only=True)
class FunctionRequest:
    """A function as a command line names it, and the conditions of its examination."""

    subject: str
    like: str
    spec: str | None = None
    reference: str | None = None
    inputs: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    seed: int = 0
    profile: Profile = "quick"
    timeout: float | None = None


def load_function(
    request: FunctionRequest,
    *,
    lose: Callable[[Exception], None] = lambda lost: None,
    wait: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> FunctionSubject:
    """The subject, which is called for the first time; `lose` and `wait` are its own.

    Raises SubjectUnusableError in one sentence where it cannot be imported or does not fit.
    """
    named = request.subject.removeprefix(FUNCTION)
    function = _imported(named)
    spec = function_spec(request.spec)
    subject = FunctionSubject(
        name=named,
        function=function,
        convention=convention(request.like, spec),
        spec=spec,
        reference=None if request.reference is None else _imported(request.reference),
        given={} if request.inputs is None else _given(request.inputs),
        dtype=request.dtype or "float32",
        device=request.device,
        seed=request.seed,
        profile=request.profile,
        timeout=request.timeout,
        options=tuple(_words(request)),
        packages=(named.partition(".")[0].partition(":")[0],),
        place=place_of(function),
        lose=lose,
        wait=wait,
    )
    check_call(subject)
    subject = without_refused_gradients(without_refused_mask(subject))
    others = [name for name in _TAKEN_FOR_EACH_OTHER if name != request.like and request.like in _TAKEN_FOR_EACH_OTHER]
    return replace(subject, otherwise=tuple(_called_as(subject, name) for name in others))


def _called_as(subject: FunctionSubject, name: str) -> FunctionSubject:
    return replace(subject, convention=convention(name, subject.spec), known={})


def _words(request: FunctionRequest) -> Iterator[str]:
    asked = {
        "--subject": request.subject,
        "--like": request.like,
        "--spec": request.spec,
        "--reference": request.reference,
        "--inputs": request.inputs,
        "--dtype": request.dtype,
    }
    for option, value in asked.items():
        if value is not None:
            yield from (option, value)


def without_refused_gradients(subject: FunctionSubject) -> FunctionSubject:
    """The subject, as one for inference where it refuses in words to give gradients and answers without."""
    if not subject.has_gradients:
        return subject
    problem = problem_of(subject, ordinary(subject)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = attempt(lambda: ask(subject, problem))
        if isinstance(asked, Caught):  # the device is lost, which a check says
            return subject
        failure = asked.failure
        if failure is None or not failure.is_refusal or ask(subject, problem, Asking(wants=())).failure is not None:
            return subject
    return replace(subject, gradient_refusal=failure.sentence)


_TAKEN_FOR_EACH_OTHER = ("sdpa", "flash")  # heads before tokens, and behind them
_MASKS = ("attn_mask", "mask", "block_mask")  # as a keyword


def without_refused_mask(subject: FunctionSubject) -> FunctionSubject:
    """The subject called without a mask, where it is declared to hide by itself and refuses one that it names."""
    taken = [name for name in _MASKS if name in parameters_of(subject.function).defaults]
    if not subject.spec.is_built_in or subject.spec.has_mask or not taken:
        return subject
    other = replace(subject, function=without_arguments(subject.function, taken), known={})
    problem = problem_of(subject, ordinary(subject)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused, served = (attempt(lambda each=each: ask(each, problem, Asking(wants=()))) for each in (subject, other))
    if isinstance(refused, Caught) or isinstance(served, Caught) or served.failure is not None:
        return subject
    return other if refused.failure is not None and refused.failure.is_refusal else subject


def check_call(subject: FunctionSubject) -> None:
    """Raise SubjectUnusableError where the convention's arguments and the function's do not meet."""
    problem = problem_of(subject, ordinary(subject)[0])
    tensors = laid_out(subject, problem, Asking(wants=()))
    asked = subject.convention.arguments(problem, tensors)
    like, name = subject.convention.name, subject.name
    check_fits(subject.function, len(asked.positional), like, name)
    words = bound(subject.function, asked.keywords, subject.spec, name)
    check_complete(subject.function, len(asked.positional), words, like, name)


def place_of(function: Callable[..., Any]) -> Place:
    """Where a function is defined; nowhere for one of torch's own in C++."""
    found = attempt(lambda: inspect.unwrap(function))
    found = function if isinstance(found, Caught) else found
    found = getattr(found, "func", found)
    found = getattr(found, "__func__", found)
    code = getattr(found, "__code__", None) or getattr(type(found).__call__, "__code__", None)
    if code is None:
        return Place(function=getattr(function, "__name__", ""))
    return Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


def _imported(named: str) -> Callable[..., Any]:
    function = import_named(named)
    if inspect.isclass(function) and issubclass(function, torch.autograd.Function):
        function = function.apply
    if not callable(function) or inspect.isclass(function) or isinstance(function, nn.Module):
        what = "a class" if inspect.isclass(function) else type(function).__name__
        hint = (
            f"; examine a module with --subject {named}"
            if isinstance(function, nn.Module) or inspect.isclass(function)
            else ""
        )
        raise SubjectUnusableError(f"subject fn:{named} must be a function of q, k and v, got {what}{hint}")
    return function


def _given(file: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(file).is_file():
        raise SubjectUnusableError(f"--inputs {file} does not exist")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise SubjectUnusableError(f"--inputs {file} cannot be read as safetensors: {error}") from error
    missing = [name for name in ("q", "k", "v") if name not in tensors]
    if missing:
        raise SubjectUnusableError(
            f"--inputs {file} must hold q, k and v, got {', '.join(sorted(tensors)) or 'nothing'}"
        )
    shapes = {name: list(tensors[name].shape) for name in ("q", "k", "v")}
    if any(len(shape) not in (3, 4) for shape in shapes.values()):
        raise SubjectUnusableError(f"--inputs {file} must hold q, k and v of 3 or 4 dimensions, got {shapes}")
    return tensors
