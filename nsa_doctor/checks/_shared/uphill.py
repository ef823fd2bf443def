"""A training loop whose steps go along the gradient of the loss that it returns, and not against it."""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_CLEARLY = 0.2  # as a cosine: weight decay may go along a gradient, and further than it
_SHARE = 1e-3  # of the loss, that a small move along its gradient is to add
_LEAST, _MOST = 0.1, 10.0  # times what is due: a loop may return a mean where it takes the gradient of a sum


def uphill(subject: Subject, length: int) -> Iterator[Finding]:
    """The finding of GRD206 where a loop, which has a rate of its own, climbs in its first two steps.

    A rate below zero climbs, whatever else does.

    It climbs where no parameter moves against its gradient and some move along it, where a small move along the
    gradients adds to the returned loss what it has to (so that they are gradients of that loss), and a small part of
    what the step moves does too. Where several losses are played against each other, some parameters descend.
    """
    begun = BegunLoop.of(subject)
    with _below_zero() as rates:
        (first, given), (second, given_then) = (_stepped(begun, length, subject.seed) for _ in range(2))
    if rates:
        yield Finding(
            message=f"an optimizer steps at a rate of {min(rates):.2g}, below zero, within the first two steps at "
            f"S={length}: it climbs",
            where=begun.place_of(begun.loop.step),
            evidence={"length": length, "rate": min(rates)},
            repro=command_for(subject, "GRD206"),
        )
        return
    change = _moves(first)
    if not (
        math.isfinite(first.loss) and first.loss and _is_along(change, given) and _is_along(_moves(second), given_then)
    ):
        return
    slope, climb = _product(given, given), _product(change, given)
    due = _SHARE * abs(first.loss)
    gained = _loss_beside(subject, length, given, due / slope) - first.loss
    share = min(1.0, due / climb)
    climbed = _loss_beside(subject, length, change, share) - first.loss
    if _LEAST * due <= gained <= _MOST * due and _LEAST * share * climb <= climbed:
        is_own = [each for each in first.steppers if not inspect.unwrap(each).__module__.startswith("torch.")]
        yield Finding(
            message=f"a step moves {len(change)} parameters along the gradient of the loss that it returns: at "
            f"{share:.2g} of that move the loss rises from {first.loss:.6g} to {first.loss + climbed:.6g} at "
            f"S={length}",
            where=begun.place_of(is_own[0] if is_own else begun.loop.step),
            evidence={"length": length, "loss": first.loss, "climb": climbed},
            repro=command_for(subject, "GRD206"),
        )


def _stepped(begun: BegunLoop, length: int, seed: int) -> tuple[Step, dict[str, Tensor]]:
    """One step on the same batches, and the gradients that its backward passes left, whatever became of them then."""
    with _delivered(begun) as given:
        step = begun.step(begun.batches(length, 0), seed)
    return step, {name: gradient for name, gradient in given.items() if name in step.before}


@contextmanager
def _below_zero() -> Iterator[list[float]]:
    """The rates of steps of optimizers meanwhile that are below zero for all that has a gradient.

    One that maximises is left alone, and so is one that climbs for some parameters alone, as for a multiplier.
    """
    rates: list[float] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = [group for group in optimizer.param_groups if any(each.grad is not None for each in group["params"])]
        named = [group.get("lr") for group in groups if not group.get("maximize")]
        known = [float(each) for each in named if isinstance(each, (int, float, Tensor))]
        if known and len(known) == len(groups) and max(known) < 0:
            rates.append(min(known))

    hook = register_optimizer_step_pre_hook(look)
    try:
        yield rates
    finally:
        hook.remove()


@contextmanager
def _delivered(begun: BegunLoop) -> Iterator[dict[str, Tensor]]:
    given: dict[str, Tensor] = {}

    def keep(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            given[name] = parameter.grad.detach().double().clone()

    with ExitStack() as hooks:
        for name, parameter in begun.sp.module.named_parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(lambda leaf, name=name: keep(name, leaf))
                hooks.callback(hook.remove)
        yield given


def _moves(step: Step) -> dict[str, Tensor]:
    """What a step adds to the parameters that it moves."""
    return {name: step.after[name].double() - step.before[name].double() for name in sorted(step.moved())}


def _is_along(change: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    """Whether what moves goes along its gradient, and nothing goes against it."""
    cosines = [
        _product({name: moved}, given) / (float(moved.norm()) * float(given[name].norm()))
        for name, moved in change.items()
        if name in given and bool(given[name].any())
    ]
    return bool(cosines) and min(cosines) > -_CLEARLY and max(cosines) > _CLEARLY and _product(change, given) > 0


def _product(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return sum(float((one[name] * other[name]).sum()) for name in one.keys() & other.keys())


def _loss_beside(subject: Subject, length: int, direction: Mapping[str, Tensor], rate: float) -> float:
    """The loss of the first step of a loop whose parameters are moved beforehand."""
    begun = BegunLoop.of(subject)
    parameters = dict(begun.sp.module.named_parameters())
    with torch.no_grad():
        for name, move in direction.items():
            parameters[name].add_((rate * move).to(parameters[name]))
    return begun.step(begun.batches(length, 0), subject.seed).loss
