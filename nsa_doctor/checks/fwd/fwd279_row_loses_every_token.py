"""FWD279 row-loses-every-token

Detects: a random mask with one value for each row of the batch ([B, 1, 1] beside [B, S, D]), with which some rows lose
    all their tokens in training: their output is the same whatever the row holds, and in evaluation it is not. A note
    where the mask is called one of a branch.
Matters: a share of all rows trains the model to answer nothing, and no single token is ever dropped.
Fix: draw for each token, `x.new_empty(x.shape[0], x.shape[1], 1)`.

Example:
    # faulty
    mask = x.new_empty(x.size(0), 1, 1).bernoulli_(1 - p)  # word dropout of x [B, S, D]
    # correct
    mask = x.new_empty(x.size(0), x.size(1), 1).bernoulli_(1 - p)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.lost_rows import lost_rows
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    if not {"train", "eval"} <= set(subject.modes):
        raise NotApplicableError("it does not run in both modes")
    sp = built(subject, mode="train")
    with unobserved():
        found = attempt(lambda: list(lost_rows(sp)))
    if isinstance(found, Caught):
        if isinstance(found.error, NotApplicableError):
            raise found.error
        raise NotComparableError(f"it does not take a batch in training mode: {found.sentence}")
    for each in found:
        drawn = each.masking.draws[0]
        said = (
            f"{each.num_lost} of {each.rows} rows lose all their tokens in training, so that their output is the same "
            f"whatever they hold: the mask is drawn as {list(drawn.shape)}"
        )
        if each.is_branch:
            yield Note(message=said, where=each.masking.place)
            continue
        yield Finding(
            message=said,
            where=each.masking.place,
            evidence={"lost": each.num_lost, "rows": each.rows, "drawn": str(list(drawn.shape))},
            repro=command_for(subject, "FWD279"),
        )


def planted(subject: Subject) -> Subject:
    class WithWords(nn.Module):
        """The subject behind a dropout of words that draws for each row."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor) -> Tensor:
            kept = x * (torch.rand(len(x), 1, 1, device=x.device) < 0.8) if self.training else x
            output: Tensor = subject.forward(self.inner, kept)
            return output

    return replace(subject, build=lambda _seed: WithWords(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD203"))
