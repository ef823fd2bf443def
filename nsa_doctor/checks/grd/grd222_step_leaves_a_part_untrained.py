"""GRD222 step-leaves-a-part-untrained

Detects: a part of the module, all of whose parameters want a gradient and on which the output depends, that gets none
in any step of a training loop which trains the others.
Matters: a term of the loss that is a number and no tensor any more, as `loss.item()`, trains nothing: the loss that is
logged looks as it should, and what it was for stays as it began.
Fix: add the loss itself; what is not to be trained, say so: `requires_grad_(False)`, or leave it out of the optimizer.

Example:
    # faulty
    loss = reconstruction.item() + commitment
    # correct
    loss = reconstruction + commitment
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for, listed, placed, trainable
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.numbers_taken import first_number_taken
from nsa_doctor.probes.internal import parameter_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.stepping import Step, step
from nsa_doctor.probes.model.training import forward_backward, new_optimizer
from nsa_doctor.subject.contract import Subject

_NUM_STEPS = 4
_RATE = 0.01
_FEWEST = 2  # parameters of a part


def run(subject: Subject) -> Iterator[Finding]:
    sp, length = built(subject, mode="train"), lengths_for(subject)[0]
    optimizer = new_optimizer(sp.module, _RATE)
    steps = [step(sp, optimizer, sp.input(length, seed=subject.seed + index)) for index in range(_NUM_STEPS)]
    wanted = {name for name, gradient in _of_output(subject, length).items() if bool(gradient.any())}
    part = _untrained(sp.module, steps, wanted)
    if part is None:
        return
    names = _names(sp.module, part)
    place = first_number_taken(
        sp.module, names, subject.packages, lambda: step(sp, optimizer, sp.input(length, seed=subject.seed))
    )
    why = "; what comes of them is made a number, or detached" if place else ""
    yield Finding(
        message=f"{listed(names)} of {part} get no gradient in {_NUM_STEPS} training steps at S={length}, while others "
        f"do and the output depends on them{why}",
        where=placed(place or Place(), names, sp.module),
        evidence={"part": part, "length": length},
        repro=command_for(subject, "GRD222"),
    )


def _untrained(module: nn.Module, steps: list[Step], wanted: Set[str]) -> str | None:
    """The largest part of those that the output depends on, optimizers hold and no step gives a gradient.

    None where nothing gets any.
    """
    trained = {name for taken in steps for name, gradient in taken.gradients.items() if bool(gradient.any())}
    held = set().union(*(taken.held for taken in steps)) or {name for name, _ in trainable(module)}
    if not trained:
        return None
    parts = {path: _names(module, path) for path, _ in module.named_modules() if path}
    sizes = {
        path: sum(parameter_at(module, name).numel() for name in names)
        for path, names in parts.items()
        if len(names) >= _FEWEST and held.issuperset(names) and trained.isdisjoint(names)
        if not wanted.isdisjoint(names)
    }
    return max(sizes, key=lambda path: (sizes[path], -len(path)), default=None)


def _names(module: nn.Module, part: str) -> list[str]:
    return [name for name, _ in trainable(module) if name.startswith(f"{part}.")]


def _of_output(subject: Subject, length: int) -> Mapping[str, Tensor]:
    sp = built(subject, mode="train")
    return forward_backward(sp, sp.input(length)).gradients


def planted(subject: Subject) -> Subject:
    class Beside(nn.Module):
        """The subject, and a layer behind it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.behind = subject.build(subject.seed), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            seen: Tensor = self.behind(output[..., None])
            return seen.squeeze(-1)

    def of_numbers(module: Any, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        fit = (subject.forward(module.inner, x) - 1).square().mean()
        loss = module(x).square().mean().item() + fit
        loss.backward()
        optimizer.step()
        return loss.detach()

    return replace(subject, build=lambda _seed: Beside(), forward=lambda module, x: module(x), train_step=of_numbers)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), blocked_by=("GRD205",), priority=462)
