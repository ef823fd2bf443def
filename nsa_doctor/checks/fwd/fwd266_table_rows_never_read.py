"""FWD266 table-rows-never-read

Detects: a table of parameters that is read by where tokens stand, such as a bias by distance, of which rows are never
read at any length: several between others that are, or all on one side where tokens read what is before them and what
is behind them.
Matters: distances that were to have rows of their own share one, or a sign is lost: before and behind are the same.
Fix: shift what is signed by the half of the table (`j - i + size - 1`), and mind `abs`, a scale and a clamp.

Example:
    # faulty
    bias = self.table[(j - i).abs()]  # of 2 * size - 1 rows
    # correct
    bias = self.table[j - i + size - 1]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.unread_rows import unread_rows
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LONGER, _FEWEST = 520, 60


def run(subject: Subject) -> Iterator[Finding]:
    longer = min(_LONGER, subject.max_length)
    shorter = longer * 3 // 5
    if subject.is_slow or longer < _FEWEST:
        raise NotApplicableError(f"calls take too long, or it serves less than {_FEWEST} tokens")
    sp, lines = built(subject), set[str]()
    for found in unread_rows(sp, shorter, longer):
        if found.place.line_text in lines:
            continue  # of another layer
        lines.add(found.place.line_text)
        yield Finding(
            message=f"{found.num_unread} of the {found.num_rows} rows of {found.name} are never read, {found.words}, "
            f"at S={shorter} and S={longer}",
            where=in_subject(found.place, sp.module),
            evidence={"parameter": found.name, "rows": found.num_rows, "unread": found.num_unread},
            repro=command_for(subject, "FWD266"),
        )


def planted(subject: Subject) -> Subject:
    class Folded(nn.Module):
        """A mean weighted by a bias that skips every other row of its table."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.table = nn.Parameter(torch.randn(33))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            place = torch.arange(x.shape[1], device=x.device)
            distance = (place[:, None] - place).clamp(0, 16) * 2
            return output + self.table[distance].softmax(-1).tril() @ output

    return replace(subject, build=lambda _seed: Folded(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206"), priority=449)
