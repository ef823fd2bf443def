"""FWD247 far-keys-favoured

Detects: a bias of scores that grows evenly with the distance between a query and its key, as ALiBi's does with the
wrong sign, or a distance to keys ahead that is not taken absolutely; one that falls by more than 1 a token in every
head.
Matters: a softmax then reads what is farthest, and more so the longer the text is; or the nearest tokens alone.
Fix: subtract slope * abs(query - key), with slopes 2 ** (-8 h / H) for heads h = 1 … H.

Example:
    # faulty
    scores = scores + slopes * (query - key)
    # correct
    scores = scores - slopes * (query - key).abs()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.distance_bias import wrong_biases
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 33


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    tokens = (sp.input(1, seed=subject.seed + index).repeat_interleave(length, dim=1) for index in range(2))
    reported: set[str] = set()
    for bias in wrong_biases(sp, *tokens):
        if bias.place.line_text not in reported:
            reported.add(bias.place.line_text)
            yield Finding(
                message=f"with equal tokens {bias.text}",
                where=in_subject(bias.place, sp.module),
                evidence={"least": min(bias.slopes), "most": max(bias.slopes)},
                repro=command_for(subject, "FWD247"),
            )


def planted(subject: Subject) -> Subject:
    def adds_distances(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        ones = torch.ones(y.shape[-1], 8, dtype=y.dtype, device=y.device)
        states = (x if x.is_floating_point() else torch.zeros_like(y)).flatten(0, 1)[..., : y.shape[-1]]
        turned = (states @ ones[: states.shape[-1]]).unflatten(0, y.shape[:2])
        position = torch.arange(y.shape[1], dtype=y.dtype, device=y.device)
        distance = position[:, None] - position
        scores = (turned @ turned.mT + 0.25 * distance).masked_fill(distance < 0, -torch.inf)
        return y + 0.1 * scores.softmax(-1) @ y

    return replace(subject, forward=adds_distances)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"), priority=455)
