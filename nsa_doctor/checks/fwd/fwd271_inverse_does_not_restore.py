"""FWD271 inverse-does-not-restore

Detects: two functions or modes that by their names undo each other (split_heads and merge_heads, window_partition and
    window_reverse, normalize and denormalize, patchify and unpatchify, segment and overlap_add), both called in a
    pass, where the second does not give back what the first was given.
Matters: tokens, heads or channels come out mixed with others, or values in another scale than the input has; the model
    trains around it and is worse for it.
Fix: undo each step of the first in the opposite order: the transpose before the reshape, the shift before the factor.

Example:
    # faulty
    return x.reshape(B, S, H * D)
    # correct
    return x.transpose(1, 2).reshape(B, S, H * D)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.restored import not_restored
from nsa_doctor.subject.contract import Subject

_LENGTH = 24


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    reported: set[tuple[str, int]] = set()  # lines: a mode may call a method of that name
    for pair in not_restored(sp, min(_LENGTH, subject.max_length)):
        line = pair.place.file, pair.place.line
        if line not in reported:
            reported.add(line)
            yield Finding(
                message=f"{pair.second} does not give back what {pair.first} was given: {pair.text}",
                where=pair.place,
                evidence={"first": pair.first, "second": pair.second, "difference": pair.difference},
                repro=command_for(subject, "FWD271"),
            )


def planted(subject: Subject) -> Subject:
    class Scaled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.gain, self.bias = inner, nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

        def scale(self, x: Tensor) -> Tensor:
            return x * self.gain + self.bias

        def unscale(self, x: Tensor) -> Tensor:
            return x / self.gain - self.bias

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x)
            return self.unscale(self.scale(output))

    return replace(subject, build=lambda seed: Scaled(subject.build(seed)))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=457)
