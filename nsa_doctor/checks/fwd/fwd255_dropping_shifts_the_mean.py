"""FWD255 dropping-shifts-the-mean

Detects: a module named after dropping (DropPath, StochasticDepth, LockedDropout, …) whose answer in training mode is
in the mean another than in evaluation: it sets some values to zero and leaves the others as large as they were,
divides by the share that it drops, or drops none and makes all of them smaller.
Matters: what follows is trained on values of one size and evaluated on values of another, layer upon layer.
Fix: divide what is kept by the share that is kept, `x * mask / (1 - p)`.

Example:
    # faulty
    mask = torch.rand(x.shape[0], 1, 1, device=x.device) < 1 - self.rate
    return x * mask
    # correct
    return x * mask / (1 - self.rate)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.dropped_mean import dropped_means
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.divergence import answer_place
from nsa_doctor.subject.contract import Subject

_LENGTH = 16


def run(subject: Subject) -> Iterator[Finding]:
    if not {"train", "eval"} <= set(subject.modes):
        raise NotApplicableError("it does not run in both modes")
    sp = built(subject, mode="train")
    reported: set[type[nn.Module]] = set()
    for found in dropped_means(sp, min(_LENGTH, subject.max_length)):
        kind = type(found.module)
        if kind not in reported:
            reported.add(kind)
            seed_everything(found.seed)
            yield Finding(
                message=(
                    f"{kind.__name__} sets {f'{found.share:.2g}' if found.share else 'none'} of its input to zero in "
                    f"training mode and leaves {found.mean:.3g} of it in the mean, where evaluation leaves "
                    f"{found.due:.3g}"
                ),
                where=answer_place(sp, found.name, partial(found.module, found.x)),
                evidence={"training": found.mean, "evaluation": found.due, "dropped": found.share},
                repro=command_for(subject, "FWD255"),
            )


def planted(subject: Subject) -> Subject:
    class DropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return x * (torch.rand(x.shape[0], *(1,) * (x.dim() - 1)) < 0.8)

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = subject.build(subject.seed), DropPath()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return self.drop(output)

    return replace(subject, build=lambda _seed: Dropped(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
