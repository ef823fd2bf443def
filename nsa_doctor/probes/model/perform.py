"""Runs a subject once, at one point: build, forward, backward."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from nsa_doctor.core.measurement import Point
from nsa_doctor.probes.hooks.memory import start_peak
from nsa_doctor.probes.hooks.phase import ask, in_mode
from nsa_doctor.probes.model.inputs import make_cotangent, make_input
from nsa_doctor.probes.model.state import cast, seed_everything
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Asked, Subject, WrongOutputError

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all points of a run have in common."""

    seed: int = 0
    device: str = "cpu"
    forward_only: bool = False
    measures_memory: bool = True


@dataclass(frozen=True, kw_only=True)
class Performance:
    """What a run left behind; `others` are the tensors returned beside the output.

    Seconds and peak memory cover forward and backward.
    """

    module: nn.Module
    x: Tensor
    output: Tensor
    others: dict[str, Tensor]
    gradients: dict[str, Tensor]
    seconds: float
    peak_bytes: int | None


class Watcher(Protocol):
    """What may look on while a subject runs."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A region around each call into the subject."""
        ...

    def know(self, module: nn.Module, x: Tensor) -> None:
        """Called once between build and forward."""
        ...

    def follow(self, output: Tensor) -> None:
        """Called once between forward and backward."""
        ...


class NoWatcher:
    """Looks away."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def know(self, module: nn.Module, x: Tensor) -> None:
        """Learn nothing."""

    def follow(self, output: Tensor) -> None:
        """Follow nothing."""


def perform(subject: Subject, point: Point, conditions: Conditions, watcher: Watcher | None = None) -> Performance:
    """Build the subject afresh and run it; raises SubjectFailedError when it raises or returns the wrong thing."""
    watcher = watcher or NoWatcher()
    device, dtype = torch.device(conditions.device), getattr(torch, point.dtype)
    wants_gradients = point.mode == "train" and not conditions.forward_only
    seed_everything(conditions.seed)
    with watcher.phase("build"):
        other = None if point.dtype == subject.dtype else dtype  # parameters may differ from each other in theirs
        build = lambda: cast(subject.build(conditions.seed), other, device)  # noqa: E731
        module = in_mode(ask("build", build, None), point.mode)
    x = make_input(subject, point, conditions.seed, device)
    x.requires_grad_(wants_gradients and x.is_floating_point())
    watcher.know(module, x)
    seed_everything(conditions.seed)
    peak = start_peak(device) if conditions.measures_memory else lambda: None
    start = time.perf_counter()
    with torch.set_grad_enabled(point.mode != "no_grad"):
        given = x.clone()  # a subject may write into what flows through it; a leaf would refuse
        with watcher.phase("forward"):
            output, others = ask("forward", lambda: checked_answer(subject, subject.forward(module, given), x), module)
    gradients: dict[str, Tensor] = {}
    if wants_gradients and output.requires_grad:
        # A scalar, as in training; torch imports a whole algebra system to be given a gradient instead.
        loss = (output * make_cotangent(output, conditions.seed)).sum()
        watcher.follow(loss)
        with watcher.phase("backward"):
            ask("backward", loss.backward, module, output)
        gradients = _gradients(module, x)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Performance(
        module=module,
        x=x,
        output=output,
        others=others,
        gradients=gradients,
        seconds=time.perf_counter() - start,
        peak_bytes=peak(),
    )


def look_at_branches(
    subject: Subject, point: Point, conditions: Conditions, performance: Performance
) -> dict[str, Tensor]:
    """The subject's inner tensors in one more forward pass under the same conditions; none when it offers none."""
    branches = subject.branches
    if branches is None:
        return {}
    seed_everything(conditions.seed)
    module, x = performance.module, performance.x.detach().clone()
    with torch.set_grad_enabled(point.mode != "no_grad"):
        return dict(ask("forward", lambda: branches(module, x), module))


def checked_answer(subject: Subject, answer: object, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, when there is the tensor that is expected for `x`, and the tensors beside it."""
    rows, length = x.shape[:2]

    def is_of_tokens(output: Tensor) -> bool:
        return output.ndim == 3 and output.shape[:2] == x.shape[:2] and output.is_floating_point()

    def is_as_wide(output: Tensor) -> bool:
        return is_of_tokens(output) and output.shape[2] == subject.width

    def is_no_map(output: Tensor) -> bool:  # scores [B, S, S] beside it are as wide as it at one length
        return is_of_tokens(output) and output.shape[2] != length

    # as a state [B, D, K] beside it is of S tokens at one length
    may_be_map = subject.width == length and subject.output_width != subject.width

    fits, width = is_of_tokens, "vocabulary" if subject.input == "tokens" else str(subject.width)
    if subject.input == "tokens":
        output, others = split_answer(answer, is_of_tokens)
    elif subject.is_width_kept:
        fits = is_as_wide
        output, others = split_answer(answer, is_as_wide)
    else:
        preferred = (is_no_map,) if may_be_map else (is_as_wide, is_no_map)
        output, others = split_answer(answer, *preferred, is_of_tokens)
    expected = f"expected a floating-point tensor [{rows}, {length}, {width}]"
    if not isinstance(output, Tensor):
        raise WrongOutputError(f"forward returned {type(output).__name__}, {expected}")
    if not fits(output):
        message = f"forward returned {str(output.dtype)[6:]} {list(output.shape)}, {expected}"
        again = lambda module: subject.forward(module, x.detach().clone())  # noqa: E731
        raise WrongOutputError(message, Asked(again, subject.packages, x.shape[1], output.shape))
    return output, others


def _gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Gradients of the input and of every parameter that got one."""
    found = {"the input": x.grad} if x.grad is not None else {}
    found |= {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return found
