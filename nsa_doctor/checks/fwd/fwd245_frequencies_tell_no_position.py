"""FWD245 frequencies-tell-no-position

Detects: sines of positions whose frequencies do not fall from about a radian a token to slow ones: the slowest turns by
    a radian and the others by more, all make more than half a turn, all but one hardly turn, or all turn alike. Others
    are not judged.
Matters: where a token stands then shows at random or not at all; the model trains, and does worse on long text.
Fix: frequencies are base ** (-2 i / D) for i = 0 … D/2 - 1: mind the sign, the brackets and a division that rounds.

Example:
    # faulty
    frequencies = 10000 ** (torch.arange(0, D, 2) / D)
    # correct
    frequencies = 10000 ** (-torch.arange(0, D, 2) / D)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.doubled_features import doubled_features
from nsa_doctor.probes.attention.doubled_tables import doubled_table
from nsa_doctor.probes.attention.frequencies import ladders
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 61


def run(subject: Subject) -> Iterator[Finding]:
    reported: set[str] = set()
    for ladder in ladders(subject, min(_LENGTH, subject.max_length)):
        fault = ladder.fault
        if fault is not None and ladder.place.line_text not in reported:
            reported.add(ladder.place.line_text)
            yield Finding(
                message=f"{len(ladder.radians)} frequencies of positions are wrong: from a token to the next {fault}",
                where=ladder.place,
                evidence={"first": ladder.radians[0], "last": ladder.radians[-1]},
                repro=command_for(subject, "FWD245"),
            )
    sp = comparable_module(subject)
    added = doubled_table(sp, min(_LENGTH, subject.max_length))
    projected = doubled_features(subject, min(_LENGTH, subject.max_length))
    for doubled, which in ((added, "of positions that is added to tokens"), (projected, "of waves that is projected")):
        if doubled is None or doubled.place.line_text in reported:
            continue
        reported.add(doubled.place.line_text)
        yield Finding(
            message=(
                f"the table {which} holds each of its {doubled.channels} columns more than once: {doubled.distinct} "
                "are unlike"
            ),
            where=in_subject(doubled.place, sp.module),
            evidence={"channels": doubled.channels, "distinct": doubled.distinct},
            repro=command_for(subject, "FWD245"),
        )


def planted(subject: Subject) -> Subject:
    def adds_positions(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        frequencies = 10000 ** (torch.arange(0, 32, 2, device=y.device) / 32)
        angles = torch.arange(y.shape[1], device=y.device)[:, None] * frequencies
        return y + 0.01 * angles.sin().mean(-1, keepdim=True).to(y.dtype)

    return replace(subject, forward=adds_positions)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=457)
