"""FWD218 scores-depend-on-where

Detects: attention with rotary positions, with a softmax or without, whose scores between equal tokens depend on where
they stand, not on their distance alone: that in rows and in columns, where tokens are the places of an image. So does
attention that adds scores of what is named after relative positions, and whose scores depend on distance without.
Matters: queries and keys are then turned by different angles (one of them not, or twice), or the shift from distances
to keys reads another length, and what is learnt at one position does not hold at another.
Fix: rotate queries and keys once each, with one table, every head alike, each by its own token's position; make the
relative positions, and their shift, for the length that comes.

Example:
    # faulty
    q, k = rotate(q, positions), k
    # correct
    q, k = rotate(q, positions), rotate(k, positions)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.relative_scores import relative_strays
from nsa_doctor.probes.attention.score_watch import softmaxes
from nsa_doctor.probes.attention.stationary import Stray, is_of_a_grid, rotation, strays, strays_without_softmax
from nsa_doctor.probes.attention.turning_lines import turning_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS = (61, 320)  # the longer one behind what bfloat16 counts one by one


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    reported: set[str] = set()
    for length in dict.fromkeys(min(each, subject.max_length) for each in _LENGTHS):
        for place, stray, alike in _found(sp, length, is_short_right=not reported):
            if place.line_text not in reported:
                reported.add(place.line_text)
                yield Finding(
                    message=f"scores between equal tokens depend on where they stand: {stray.text}, at S={length} with "
                    f"{alike}",
                    where=place,
                    evidence={"length": length, "query": stray.query, "difference": stray.size},
                    repro=command_for(subject, "FWD218"),
                )


def _found(sp: BuiltModule, length: int, *, is_short_right: bool) -> Iterator[tuple[Place, Stray, str]]:
    """Where scores stray, how, and what is the same for all tokens; angles are at fault that short ones do not show."""
    x = sp.input(1).repeat_interleave(length, dim=1)
    turned = rotation(sp, x)
    for index, each in enumerate(softmaxes(sp, x)[0] if turned.is_seen else ()):
        scores = each.of_tokens(length) if each.is_fed_alike else None
        if scores is not None:
            stray = strays(scores, turned.tolerance(length))
            if stray is not None and not is_of_a_grid(scores, turned.tolerance(length)):
                is_table = is_short_right and length > _LENGTHS[0]
                place = turning_place(sp, x, index, each.others, is_table=is_table)
                yield place or each.place, stray, "one token everywhere"
    if length <= _LENGTHS[0]:
        for place, stray in strays_without_softmax(sp, x, turned):
            yield place, stray, "the same query and key for all tokens"
        for place, stray in () if turned.is_seen else relative_strays(sp, x, turned):
            yield place, stray, "one token everywhere"


def planted(subject: Subject) -> Subject:
    def turns_queries_alone(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        wide = (x if x.is_floating_point() else y) @ torch.ones_like(y[0, 0])[:, None].expand(y.shape[-1], 8)
        t = torch.arange(y.shape[1], device=y.device, dtype=y.dtype)[:, None]
        turned = torch.cat((wide * t.cos(), wide * t.sin()), dim=-1)
        hidden = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool, device=y.device).triu(1)
        scores = turned @ torch.cat((wide * (2 * t).cos(), wide), dim=-1).mT / 64
        return y + 0.1 * scores.masked_fill(hidden, -torch.inf).softmax(-1) @ y

    return replace(subject, forward=turns_queries_alone)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD206", "NAN101"), explained_by=("FWD262", "FWD269"))
