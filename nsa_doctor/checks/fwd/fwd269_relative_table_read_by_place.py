"""FWD269 relative-table-read-by-place

Detects: a table named after relative positions whose row for a query and a key follows from where they stand and not
from their distance, along a sequence or in a window; one of which near keys before and behind share rows and farther
ones do not; one with a row for each offset in a window, of which two offsets read the same.
Matters: what is learnt of a distance at one place does not hold at another; shapes are right, and the loss falls.
Fix: index by `i - j`, in a window by `(di + h - 1) * (2 * w - 1) + dj + w - 1`; tell before from behind by `< 0`.

Example:
    # faulty
    distance = i[:, None] + i[None, :]
    bias = self.rel_pos(distance.clamp(-far, far) + far)
    # correct
    distance = i[:, None] - i[None, :]
    bias = self.rel_pos(distance.clamp(-far, far) + far)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.relative_faults import relative_faults
from nsa_doctor.probes.attention.relative_structure import FEWEST
from nsa_doctor.subject.contract import Subject

_LENGTH = 37


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = min(_LENGTH, subject.max_length)
    if length < FEWEST:
        raise NotApplicableError(f"it serves less than {FEWEST} tokens")
    reported: set[str] = set()
    for fault in relative_faults(subject, length):
        if not fault.is_known:
            yield Note(message=f"{fault.read.name} {fault.text}", where=fault.place)
            continue
        if fault.place.line_text in reported:
            continue  # of another layer
        reported.add(fault.place.line_text)
        size = len(fault.read.rows)
        tokens = f" of {size} tokens" if size != length else ""
        yield Finding(
            message=f"{fault.read.name} {fault.text}, at S={length}{tokens}",
            where=fault.place,
            evidence={"table": fault.read.name, "rows": fault.read.num_rows, "length": length, "tokens": size},
            repro=command_for(subject, "FWD269"),
        )


def planted(subject: Subject) -> Subject:
    class Biased(nn.Module):
        """A mean weighted by a bias that a table gives for the sum of two positions."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.relative_bias = nn.Parameter(torch.randn(33))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            place = torch.arange(x.shape[1], device=x.device)
            distance = (place[:, None] + place).clamp(0, 32)
            return output + self.relative_bias[distance].tril() @ output / x.shape[1]

    return replace(subject, build=lambda _seed: Biased(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206"))
