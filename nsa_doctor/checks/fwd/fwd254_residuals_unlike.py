"""FWD254 residuals-unlike

Detects: blocks of which one part adds what it makes of the normed stream to that, and the next goes on from there: it
norms the sum and adds to the sum itself, as the first should have done. What happens once is left alone, as are blocks
whose parts all add to what a norm gives, and branches that do within themselves. And a stream and what a part makes
of it that are subtracted, where the same function adds those of another part.
Matters: the stream is normed in every layer, and what came from below is drowned.
Fix: add to what stood there before the norm.

Example:
    # faulty
    x = self.norm(x)
    x = x + self.attend(x)
    x = x + self.feed(self.other_norm(x))
    # correct
    x = x + self.attend(self.norm(x))
    x = x + self.feed(self.other_norm(x))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.residuals import subtracted, unlike_residuals
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.subject.contract import Subject

_LENGTH = 19


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length))
    with torch.no_grad():
        recording = recording_of(sp, lambda: sp(x))
    if less := subtracted(recording):
        first, count = less[0], len(less) - 1
        more = f"; so {'does' if count == 1 else 'do'} {count} more" if count else ""
        yield Finding(
            message=f"the stream and what a part of {first.place.module or 'the module'} makes of it are subtracted, "
            f"where {first.place.function} adds those of another part{more}",
            where=in_subject(first.place, sp.module),
            evidence={"subtractions": len(less)},
            repro=command_for(subject, "FWD254"),
        )
    if found := unlike_residuals(recording):
        first, more = found[0], f"so {'does' if len(found) == 2 else 'do'} {len(found) - 1} more"
        yield Finding(
            message=f"a part of {first.place.module or 'the module'} adds what it makes to what a norm makes of the "
            f"stream, from which the next goes on, adding to the stream itself; {more}",
            where=in_subject(first.place, sp.module),
            evidence={"additions": len(found)},
            repro=command_for(subject, "FWD254"),
        )


class _Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix, self.feed = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = x + self.mix(x)
        return x + self.feed(self.other_norm(x))


def planted(subject: Subject) -> Subject:
    class Stacked(nn.Module):
        """Two such blocks behind the subject."""

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner, self.blocks = subject.build(seed), nn.ModuleList(_Block(subject.width) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            for block in self.blocks:
                output = block(output)
            return output

    return replace(subject, build=Stacked, forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"), priority=465)
