"""FWD264 padding-hidden-on-the-wrong-side

Detects: a subject of tokens that compares its input with one id, as that of padding, and hides something else by it:
every other token, where the comparison is turned round; or that token as a query in place of as a key, so that it
attends to nothing and all attend to it.
Matters: padding is read by a row's own tokens, which get another answer for the length of their neighbours, or
nothing but padding is, and a row without any has no context at all.
Fix: `keep = ids != pad_id`, and hide keys: `scores.masked_fill(~keep[:, None, None, :], -inf)`.

Example:
    # faulty
    hidden = (ids != pad_id)[:, None, :]
    # correct
    hidden = (ids == pad_id)[:, None, :]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.padding_ids import compared_ids
from nsa_doctor.probes.attention.padding_sides import wrong_side
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_SHORTEST = 12


def run(subject: Subject) -> Iterator[Finding]:
    if subject.input != "tokens" or subject.max_length < _SHORTEST:
        raise NotApplicableError("it takes no ids, or too few")
    sp = comparable_module(subject)
    for number, place in compared_ids(sp, sp.input(_SHORTEST)).items():
        with torch.no_grad():
            found = wrong_side(sp, number)
        if found is not None:
            yield Finding(
                message=f"{found.words}: what {place.short_line} compares its input with hides the wrong side",
                where=found.place or place,
                evidence={"id": number},
                repro=command_for(subject, "FWD264"),
            )
            return


def planted(subject: Subject) -> Subject:
    class Turned(nn.Module):
        """Tokens that attend to those of id 0 alone."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, ids: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, ids).detach()
            scores = (output @ output.mT).masked_fill((ids != 0)[:, None], torch.finfo(output.dtype).min)
            return scores.softmax(-1) @ output

    return replace(subject, build=lambda _seed: Turned(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"), priority=447)
