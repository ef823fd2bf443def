"""FWD278 rows-dropped-alike

Detects: a dropout mask that is drawn for each token by itself and once for all rows of the batch ([1, S, D] or
    [1, S, 1] beside [B, S, D]), as locked dropout of the other layout draws it; no mask that is said to be one for the
    batch.
Matters: every row loses the same values at the same tokens, so that a batch regularises like one row; and a locked
    dropout, which is to keep its mask along the sequence, draws another for every token.
Fix: draw for each row, `x.new_empty(x.shape[0], 1, x.shape[2])` of [B, S, D] for a mask along the sequence.

Example:
    # faulty
    mask = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - p)  # x [B, S, D]
    # correct
    mask = x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(1 - p)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.rows_dropped_alike import rows_dropped_alike
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    sp = built(subject, mode="train")
    with unobserved():
        found = attempt(lambda: list(rows_dropped_alike(sp)))
    if isinstance(found, Caught):
        if isinstance(found.error, NotApplicableError):
            raise found.error
        raise NotComparableError(f"it does not take a batch in training mode: {found.sentence}")
    for each in found:
        drawn = each.draw.place
        is_near = (drawn.file, drawn.function) == (each.applied.file, each.applied.function)
        yield Finding(
            message=(
                f"the mask drawn as {list(each.draw.shape)} drops the same values of all {each.rows} rows of the "
                f"batch, {each.share:.0%} of them, and others at each token"
            ),
            where=drawn if is_near else each.applied,
            evidence={"rows": each.rows, "dropped": each.share, "drawn": str(list(each.draw.shape))},
            repro=command_for(subject, "FWD278"),
        )


def planted(subject: Subject) -> Subject:
    class Locked(nn.Module):
        """The subject behind a dropout of the other layout."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            if not self.training:
                return output
            return output * (torch.rand(1, *output.shape[1:], device=output.device) < 0.5) * 2

    return replace(subject, build=lambda _seed: Locked(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD203"))
