"""GRD238 step-leaves-evaluation-mode

Detects: a training step, or a forward in training mode, that calls `eval()` on the way, so that parts which run in
training mode in the first step run in evaluation mode from the next on. Norms that a line freezes, and parts whose
parameters are frozen, are left alone. Also a function that puts a model which it is given into evaluation mode for a
pass without gradients, where it, or one that calls it, then calls the model for a loss and no line sets the mode back.
Matters: from the second step on nothing is dropped out and batches are normalised by running statistics: the model is
trained as if it had neither, and only the first step of an epoch shows it as it was built.
Fix: take `eval()` out of what a step calls, or give back the mode that the module had.

Example:
    # faulty
    def item_vectors(self):
        self.eval()
        return self.items.weight
    # correct
    def item_vectors(self):
        return self.items.weight
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.behaviour.modes_between_steps import left_in_evaluation
from nsa_doctor.probes.behaviour.modes_left_by_functions import left_by_functions
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 17, (4, 1)


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it has no training mode")
    calls = [("forward", _of_forward), *([("training step", _of_step)] if subject.offers("train_step") else [])]
    served = False
    for name, call_of in calls:
        for rows in _ROWS:
            sp = built(subject, mode="train")
            call = call_of(sp, sp.input(min(_LENGTH, subject.max_length), rows))
            with unobserved(), uncompiled():
                found = attempt(lambda sp=sp, call=call: left_in_evaluation(sp, call))
            if isinstance(found, Caught):
                continue
            served = True
            if found is not None:
                shown = joined([path or "the module itself" for path in found.paths[:3]])
                yield Finding(
                    message=f"a {name} leaves {shown} in evaluation mode, in which the next one runs",
                    where=in_subject(found.place, sp.module),
                    evidence={"call": name, "num_parts": len(found.paths)},
                    repro=command_for(subject, "GRD238"),
                )
                return
            break
    for left in left_by_functions(built(subject)):
        yield Finding(
            message=f"{left.place.function} leaves {left.model} in evaluation mode, in which line {left.line} of "
            f"{left.caller} calls it for a loss",
            where=left.place,
            evidence={"call": left.caller},
            repro=command_for(subject, "GRD238"),
        )
        return
    if not served:
        raise NotComparableError(f"every call raised, of {_ROWS[0]} rows and of one")


def _of_forward(sp: BuiltModule, x: Tensor) -> Callable[[], Any]:
    return lambda: sp(x.clone())


def _of_step(sp: BuiltModule, x: Tensor) -> Callable[[], Any]:
    step, optimizer = sp.subject.train_step, new_optimizer(sp.module, 0.0)
    assert step is not None
    return lambda: step(sp.module, optimizer, x.clone())


def planted(subject: Subject) -> Subject:
    class Evaluating(nn.Module):
        """The subject behind dropout, which its own look at the weights turns off."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dropout = subject.build(subject.seed), nn.Dropout(0.1)

        def size(self) -> Tensor:
            self.eval()
            return torch.stack([each.detach().square().sum() for each in self.inner.parameters()]).sum()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            dropped: Tensor = self.dropout(output)
            return dropped if bool(self.size() >= 0) else output

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return replace(subject, build=lambda _seed: Evaluating(), forward=lambda module, x: module(x), train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted)
