"""FWD262 rotation-changes-length

Detects: a tensor that is multiplied by tables of sines and cosines of positions and added up, as rotary positions are,
    of which some sums of two channels come out longer than others, or whose channels come and go with the position.
Matters: scores then depend on where a token stands and not on distances; a channel that is nearly lost at a position
    is not read there.
Fix: (a, b) becomes (a cos - b sin, a sin + b cos), both halves by the same angle; a scale is one factor of both.

Example:
    # faulty
    return torch.cat((a * cos - b * sin, a * sin - b * cos), dim=-1)
    # correct
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.turn_lengths import length_changes
from nsa_doctor.subject.contract import Subject

_LENGTH = 61


def run(subject: Subject) -> Iterator[Finding]:
    length = min(_LENGTH, subject.max_length)
    reported: set[tuple[str, str]] = set()  # functions: queries and keys may have a line each
    for change in length_changes(subject, length):
        function = change.place.file, change.place.function or change.place.line_text
        if function not in reported:
            reported.add(function)
            yield Finding(
                message=f"turning by positions changes lengths: {change.text}",
                where=change.place,
                evidence={"length": length, "least": change.least, "most": change.most},
                repro=command_for(subject, "FWD262"),
            )


def planted(subject: Subject) -> Subject:
    def reflects_one_half(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        angle = torch.arange(y.shape[1], device=y.device, dtype=y.dtype)[:, None]
        rows = (x if x.is_floating_point() else y).to(y.dtype)
        a, b = rows.mean(-1, keepdim=True), rows.square().mean(-1, keepdim=True)
        a, b = torch.cat((a, b), dim=-1).split(1, dim=-1)
        turned = torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() - b * angle.cos()), dim=-1)
        return y + 0.01 * turned.mean(-1, keepdim=True)

    return replace(subject, forward=reflects_one_half)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=457)
