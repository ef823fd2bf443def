"""FWD282 mask-hides-nothing

Detects: a mask of padding that a module makes itself, by whether values of a token are zero, and by which attention
    hides no token even where the last ones of a row are zeros, or the id of padding: what is compared came through
    weights, as a bias or positions are added, and is never zero.
Matters: every row of a batch attends to the padding behind it; its answers change with how long the others are.
Fix: make the mask of the input, before anything is made of that, or take it from the caller.

Example:
    # faulty
    x = self.embed(x)
    hidden = x.abs().sum(-1) == 0
    # correct
    hidden = x.abs().sum(-1) == 0
    x = self.embed(x)
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.masks_of_nothing import masks_of_nothing
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    with unobserved():
        found = attempt(lambda: list(masks_of_nothing(subject)))
    if not isinstance(found, list):
        return
    for line in dict.fromkeys(each.place.line_text for each in found):
        first = next(each for each in found if each.place.line_text == line)
        yield Finding(
            message="a mask of whether values of a token are zero hides none, though a row ends with tokens of zeros "
            f"or of padding: what is compared came through weights; it is read at {Path(first.reader.file).name}:"
            f"{first.reader.line}",
            where=first.place,
            evidence={"masks": len(found)},
            repro=command_for(subject, "FWD282"),
        )


def planted(subject: Subject) -> Subject:
    class Masks(nn.Module):
        """The subject, and a little of what attention under a mask of its own gives."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.norm = nn.LayerNorm(subject.width)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            embedded = self.norm(output) + 1
            hidden = ~embedded.sum(dim=2).bool()
            scores = (embedded @ embedded.mT).tril().masked_fill(hidden[:, None], -1e9)
            return output + 1e-3 * scores.softmax(-1).tril() @ embedded

    return replace(subject, build=lambda _seed: Masks(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
