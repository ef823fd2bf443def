"""Calls a function with a problem: its answer in the doctor's own layout, or why there is none."""

import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from traceback import walk_tb
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.functions.binding import bound
from nsa_doctor.probes.functions.layout import from_layout, to_layout
from nsa_doctor.probes.functions.own_backward import OwnBackward, own_backward
from nsa_doctor.subject.function import FunctionSubject, Problem

Arrange = Callable[[str, Tensor], Tensor]
_OF_DEVICE = "CUDA error"  # after one, a process has the device no more
_NO_LSE = "its lse has no gradient"
_CLEAN = (ValueError, NotImplementedError, AssertionError)
# How compiled code says that it does not serve what it is given.
_REFUSAL = re.compile(
    r"no available kernel|not (?:supported|implemented)|unsupported|only supports?\b|not (?:\w+ )?aligned",
    re.IGNORECASE,
)
Phase = Literal["forward", "backward"]
_Value = TypeVar("_Value")


class DeviceLostError(Exception):
    """A call after which the device serves this process no more; the message says which and why."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a call gave no answer; a refusal is an exception that the function itself states in words."""

    sentence: str
    phase: Phase
    is_refusal: bool
    place: Place = field(default_factory=Place)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a call gave: out, lse, dq, dk, dv … as the doctor lays them out, on the CPU, in the dtype they came in.

    malformed: what is wrong with shape, dtype or device, by tensor. absent: inputs whose gradient autograd does not
    have. changed: inputs that the call wrote to, dout among them. backward: the user's own in Python.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    failure: Failure | None = None
    malformed: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    backward: OwnBackward | None = None
    raw: Any = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Asking:
    """How to call: with gradients of which inputs (None: all), and with tensors and dout laid out how."""

    wants: tuple[str, ...] | None = None
    arrange: Arrange = lambda name, tensor: tensor
    keeps_raw: bool = False
    around: Callable[[], Any] | None = None


def ask(subject: FunctionSubject, problem: Problem, how: Asking | None = None) -> Answer:
    """One call and its backward."""
    how = how or Asking()
    tensors = laid_out(subject, problem, how)
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in tensors.items()}
    subject.beat(problem.shape)
    returned = attempt(lambda: _settled(subject, prepared(subject, problem, tensors)(), "forward"))
    if isinstance(returned, Caught):
        return Answer(failure=_failure(returned, "forward", subject, problem))
    out = returned.get("out")
    malformed = dict(_malformed(returned, problem, subject))
    if malformed or not isinstance(out, Tensor):
        return Answer(malformed=malformed)
    answer = Answer(tensors=_canonical(returned, subject), raw=out if how.keeps_raw else None)
    wanted = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if wanted:
        lse = None if problem.dlse is None else returned.get("lse")
        if problem.dlse is not None and not (isinstance(lse, Tensor) and lse.requires_grad):
            return replace(answer, failure=Failure(sentence=_NO_LSE, phase="backward", is_refusal=True))
        inputs = {name: tensors[name] for name in wanted}
        answer = _with_gradients(answer, out, lse, inputs, subject, problem, how)
    changed = tuple(name for name, (tensor, kept) in before.items() if not _is_same(tensor.detach(), kept))
    return replace(answer, changed=(*changed, *answer.changed))


def laid_out(subject: FunctionSubject, problem: Problem, how: Asking) -> dict[str, Tensor]:
    """The inputs as the convention lays them out, leaves that need a gradient where it is wanted."""
    can = subject.has_gradients
    wants = problem.inputs.keys() if how.wants is None else how.wants
    tensors = {}
    for name, value in problem.inputs.items():
        tensor = to_layout(value.to(subject.device), subject.convention.layout).clone(
            memory_format=torch.contiguous_format
        )
        tensor = how.arrange(name, tensor).detach()
        tensors[name] = tensor.requires_grad_(can and name in wants)
    return tensors


def call_with(subject: FunctionSubject, problem: Problem, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    """The function's result read by its convention, for inputs that are laid out already; may raise anything."""
    subject.beat(problem.shape)
    return prepared(subject, problem, tensors)()


def prepared(
    subject: FunctionSubject, problem: Problem, tensors: Mapping[str, Tensor]
) -> Callable[[], Mapping[str, Any]]:
    """The call with every argument made; each call gives the result read by the convention, and may raise anything."""
    asked = subject.convention.arguments(problem, tensors)
    words = bound(subject.function, asked.keywords, subject.spec, subject.name)
    return lambda: subject.convention.read(subject.function(*asked.positional, **words), problem)


def _with_gradients(
    answer: Answer,
    out: Tensor,
    lse: Tensor | None,
    inputs: Mapping[str, Tensor],
    subject: FunctionSubject,
    problem: Problem,
    how: Asking,
) -> Answer:
    answer = replace(answer, backward=own_backward(out, inputs))
    if not out.requires_grad:
        return replace(answer, absent=tuple(inputs))
    layout = subject.convention.output or subject.convention.layout
    dout = to_layout(problem.dout.to(subject.device), layout).clone(memory_format=torch.contiguous_format)
    dout = how.arrange("dout", dout).detach()
    kept = dout.clone()
    subject.beat(problem.shape)
    wanted, outputs, onto = list(inputs.values()), [out], [dout]
    if lse is not None and problem.dlse is not None:
        outputs, onto = [out, lse], [dout, problem.dlse.to(lse)]
    given = attempt(
        lambda: _settled(subject, torch.autograd.grad(outputs, wanted, onto, allow_unused=True), "backward")
    )
    if isinstance(given, Caught):
        return replace(answer, failure=_failure(given, "backward", subject, problem))
    found = {f"d{name}": gradient for name, gradient in zip(inputs, given, strict=True) if gradient is not None}
    malformed = {
        name: f"{gradient.dtype} {list(gradient.shape)} for {inputs[name[1:]].dtype} {list(inputs[name[1:]].shape)}"
        for name, gradient in found.items()
        if (gradient.shape, gradient.dtype) != (inputs[name[1:]].shape, inputs[name[1:]].dtype)
    }
    gradients = {
        name: from_layout(gradient.detach().cpu(), subject.convention.layout) for name, gradient in found.items()
    }
    absent = tuple(name for name, gradient in zip(inputs, given, strict=True) if gradient is None)
    changed = () if _is_same(dout, kept) else ("dout",)
    return replace(answer, tensors={**answer.tensors, **gradients}, absent=absent, malformed=malformed, changed=changed)


def _canonical(returned: Mapping[str, Any], subject: FunctionSubject) -> dict[str, Tensor]:
    layout = subject.convention.output or subject.convention.layout
    return {
        name: (from_layout(value.detach(), layout) if name == "out" else value.detach()).cpu().clone()
        for name, value in returned.items()
        if isinstance(value, Tensor)
    }


def _malformed(returned: Mapping[str, Any], problem: Problem, subject: FunctionSubject) -> Iterable[tuple[str, str]]:
    out, shape = returned.get("out"), problem.shape
    layout = subject.convention.output or subject.convention.layout
    wanted = to_layout(torch.empty(shape.batch, shape.queries, shape.heads, shape.value, device="meta"), layout).shape
    if not isinstance(out, Tensor):
        yield "out", f"{type(out).__name__} where a tensor {list(wanted)} was expected"
        return
    dtype = problem.inputs["q"].dtype
    if out.shape != wanted:
        yield "out", f"shape {list(out.shape)} where {list(wanted)} was expected"
    elif out.dtype != dtype:
        yield "out", f"dtype {_named(out.dtype)} for inputs of {_named(dtype)}"
    elif out.device.type != subject.device:
        yield "out", f"a tensor on {out.device} for inputs on {subject.device}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _settled(subject: FunctionSubject, value: _Value, phase: Phase) -> _Value:
    """The value, once the device has done all that was asked of it: an error of a kernel is one of this call.

    A kernel without an end keeps the process here, which is then seen to wait for the subject.
    """
    if subject.device == "cuda":
        with subject.wait(f"a kernel of its {phase}"):
            torch.cuda.synchronize()
    return value


def _failure(caught: Caught, phase: Phase, subject: FunctionSubject, problem: Problem) -> Failure:
    """Why it failed; raises DeviceLostError where the device serves this process no more."""
    error = caught.error
    if isinstance(error, KeyboardInterrupt):
        raise error
    if type(error).__name__ == "SubjectUnusableError":
        raise error
    line = FrameFilter(subject.packages).of_traceback(error.__traceback__)
    place = subject.place if line is None else Place(file=line.file, line=line.line, function=line.function)
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if not is_memory and (_OF_DEVICE in caught.sentence or _is_device_lost(subject)):
        about = f" ({problem.about})" if problem.about else ""
        lost = DeviceLostError(f"{subject.name} raises {caught.sentence} in {phase} at {problem.shape}{about}", place)
        subject.lose(lost)
        raise lost
    return Failure(
        sentence=caught.sentence,
        phase=phase,
        is_refusal=is_memory or isinstance(error, NotImplementedError) or _is_stated(error),
        place=place,
    )


def _is_device_lost(subject: FunctionSubject) -> bool:
    """Whether the device serves this process no more: whoever asks next then hears of it, whatever was said first."""
    return subject.device == "cuda" and isinstance(attempt(torch.cuda.synchronize), Caught)


def _is_stated(error: BaseException) -> bool:
    """Whether a `raise` or an `assert` of Python code made it, not an operation that went wrong."""
    last = None
    for last, line in walk_tb(error.__traceback__):
        stated = linecache.getline(last.f_code.co_filename, line).strip()
    if last is None:
        return False
    is_raised = stated.startswith(("raise", "assert")) and isinstance(error, (*_CLEAN, RuntimeError, TypeError))
    return is_raised or (isinstance(error, RuntimeError) and _REFUSAL.search(str(error)) is not None)


def _is_same(tensor: Tensor, kept: Tensor) -> bool:
    return tensor.shape == kept.shape and bool(((tensor == kept) | (tensor.isnan() & kept.isnan())).all())
