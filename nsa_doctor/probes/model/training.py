"""One forward and backward pass, or one step of a given training loop, under the eyes of a watch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.saved import Watch
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.running_state import rewind
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

LEARNING_RATE = 1e-3


class NoWatch:
    """Looks away."""

    def know(self, module: nn.Module) -> None:
        """Learn nothing."""

    def watching(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def follow(self, loss: Tensor) -> None:
        """Follow nothing."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a forward and backward pass left; `gradients` by name of parameter, and of the input."""

    module: nn.Module
    x: Tensor
    output: Tensor
    others: Mapping[str, Tensor]
    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Something to repeat from the start: what is done, and how; it gives what the gradients made of it, by name."""

    label: str
    length: int
    run: Callable[[Watch], Mapping[str, Tensor]]


def forward_backward(sp: BuiltModule, x: Tensor, watch: Watch | None = None) -> Pass:
    """Run the module forward and backward, from gradients of None, to a scalar that all it returns bears on.

    The scalar weighs the output, and what is returned beside it and wants a gradient, by fixed random numbers.
    """
    watch = watch or NoWatch()
    subject, module = sp.subject, sp.module
    module.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_(x.is_floating_point())
    watch.know(module)
    rewind(module)
    seed_everything(subject.seed)
    with torch.enable_grad():
        given = x.clone()  # a subject may write into what flows through it; a leaf would refuse
        with watch.watching():
            output, others = ask("forward", lambda: checked_answer(subject, subject.forward(module, given), x), module)
        loss = weighed(output, others, subject.seed)
        if loss.requires_grad:
            watch.follow(loss)
            with watch.watching():
                ask("backward", loss.backward, module, output)
    gradients = {"the input": x.grad} if x.grad is not None else {}
    gradients |= {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return Pass(module=module, x=x, output=output, others=others, loss=loss.detach(), gradients=gradients)


def weighed(output: Tensor, others: Mapping[str, Tensor], seed: int) -> Tensor:
    """A scalar: the output and the other tensors that want a gradient, each times fixed random numbers, summed."""
    loss = (output * make_cotangent(output, seed)).sum()
    for index, other in enumerate(others.values()):
        if other.requires_grad and other.is_floating_point() and bool(isfinite(other.detach()).all()):
            loss = loss + (other * make_cotangent(other, seed + 1 + index)).sum().to(loss.dtype)
    return loss


def trials(subject: Subject, lengths: list[int], modes: tuple[Mode, ...] = ("train",)) -> Iterator[Trial]:
    """Forward and backward at each length and mode, then a step of the training loop where one is given."""
    for mode in modes:
        for length in lengths:
            label = f"S={length}" + (" (eval)" if mode == "eval" else "")
            yield Trial(label=label, length=length, run=_pass_of(subject, length, mode))
    if subject.train_step is not None and lengths:
        length = lengths[-1]
        yield Trial(label=f"a training step at S={length}", length=length, run=_step_of(subject, length))


def _pass_of(subject: Subject, length: int, mode: Mode) -> Callable[[Watch], Mapping[str, Tensor]]:
    def run(watch: Watch) -> Mapping[str, Tensor]:
        with preserved_state():
            sp = built(subject, mode=mode)
            return forward_backward(sp, sp.input(length), watch).gradients

    return run


def _step_of(subject: Subject, length: int) -> Callable[[Watch], Mapping[str, Tensor]]:
    def run(watch: Watch) -> Mapping[str, Tensor]:
        with preserved_state():
            sp = built(subject, mode="train")
            watch.know(sp.module)
            with torch.enable_grad(), watch.watching():
                take_step(sp, new_optimizer(sp.module), sp.input(length))
            return {name: parameter.detach() for name, parameter in sp.module.named_parameters()}

    return run


def new_optimizer(module: nn.Module, rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Plain gradient descent over all parameters; NotComparableError when there are none."""
    parameters = list(module.parameters())
    if not parameters:
        raise NotApplicableError("there are no parameters to train")
    return torch.optim.SGD(parameters, lr=rate)


def take_step(sp: BuiltModule, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    """One step of the subject's own training loop, seeded; the loss it returns."""
    subject, module = sp.subject, sp.module
    step = subject.train_step
    assert step is not None
    seed_everything(subject.seed)
    return number(ask("a training step", lambda: step(module, optimizer, x.clone()), module))


def number(answer: Any) -> float:
    """What a loop returns as its loss, first or by that name; 0, of which nothing is said, for what holds none."""
    answer = answer[0] if isinstance(answer, tuple) and answer else answer
    answer = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", answer)
    if isinstance(answer, Tensor) and answer.numel() == 1:
        return float(answer.detach().double())
    return float(answer) if isinstance(answer, Real) else 0.0
