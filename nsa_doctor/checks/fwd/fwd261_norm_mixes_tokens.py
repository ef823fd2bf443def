"""FWD261 norm-mixes-tokens

Detects: a module that is named after LayerNorm, RMSNorm or ScaleNorm, is given tokens of features, and whose answer at
one token changes with the size of another alone: its mean or its size is taken over several of them. Queries that an
attention divides by their length over the tokens, while it divides the keys by theirs over the channels; or keys so,
beside such queries. Both over the tokens, as in cross-covariance attention, are left alone.
Matters: what a token becomes depends on which others are beside it, padding too, and on their number; nothing shows of
it in an encoder, where tokens read each other anyway.
Fix: take the mean and the variance, or the length, over the last dimension alone. A norm over more says so in its name
or in its `normalized_shape`.

Example:
    # faulty
    mean = x.mean((-2, -1), keepdim=True)
    # correct
    mean = x.mean(-1, keepdim=True)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.attention.normed_operands import askew_pairs
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.mixing_norms import mixing_norms, statistics_place
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 19, 2  # as long as nothing else is


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    reported: set[type[nn.Module]] = set()
    for norm in mixing_norms(sp, min(_LENGTH, subject.max_length)):
        kind, count = type(norm.module), norm.x.shape[norm.axis]
        if kind not in reported:
            reported.add(kind)
            yield Finding(
                message=(
                    f"{kind.__name__} takes its statistics over several tokens: in {list(norm.x.shape)}, larger values "
                    f"at index {count - 1} of axis {norm.axis} alone change its output at indices before by up to "
                    f"{short_number(norm.change)}, where it comes to {short_number(norm.size)}"
                ),
                where=statistics_place(sp, norm),
                evidence={"axis": norm.axis, "tokens": count, "change": norm.change},
                repro=command_for(subject, "FWD261"),
            )
    for pair in askew_pairs(sp, sp.input(min(_LENGTH, subject.max_length), _ROWS)):
        askew, other = pair.over_rows, pair.other
        yield Finding(
            message=(
                f"{list(askew.shape)} is divided by its length over axis {askew.axis}, {askew.size} tokens, and what "
                f"it is compared with, {list(other.shape)}, by that over axis {other.axis}, its {other.size} channels"
            ),
            where=in_subject(askew.place, sp.module),
            evidence={"axis": askew.axis, "tokens": askew.size, "channels": other.size},
            repro=command_for(subject, "FWD261"),
        )
        return


def planted(subject: Subject) -> Subject:
    class LayerNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean((-2, -1), keepdim=True)
            return x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + 1e-6)

    class Normed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.norm = inner, LayerNorm()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x)
            return output + self.norm(output)

    return replace(subject, build=lambda seed: Normed(subject.build(seed)))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), explained_by=("FWD203",), priority=456)
