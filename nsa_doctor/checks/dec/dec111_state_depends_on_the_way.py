"""DEC111 state-depends-on-the-way

Detects: a field of the KV cache or state that a prompt taken in at once, or in parts, leaves other than its tokens one
    by one do, where that changes what is decoded from it, now or once windows have moved and blocks are complete.
Matters: keys rotated by one way and raw by the other, or a field that no prompt fills, spoil all that follows.
Fix: look at the field and the line named: a step that counts positions from 0 in place of from the tokens that came
    before (DEC101), or a field that two functions write, each in its own way.

Example:
    # faulty
    state.k_cmp = compress(k)  # a prompt; steps append compress(rotate(k))
    # correct
    state.k_cmp = compress(rotate(k))
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import narrowing, rows_cut_short
from nsa_doctor.checks._shared.of_state import Blamed, blamed, lengths_to_leave, shows_in_own_dtype
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.cache_ways import Way, Ways, differences, ways_to_feed
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state_fields import fields_of
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    for index, (length, further) in enumerate(lengths_to_leave(subject)):
        is_brief = index > 0 and subject.profile != "full"
        found = _compared(sp, length, further, ways_to_feed(length)[: 1 if is_brief else None])
        if found is not None:
            yield from found
            return


def _compared(sp: BuiltModule, length: int, further: int, feeds: list[tuple[str, list[int]]]) -> list[Finding] | None:
    """None where nothing departs; no findings where what departs follows from a fault of another kind."""
    x = sp.input(length + further)
    ways = Ways(sp, x, baseline(sp, x))
    one_by_one = ways.way("its tokens one by one", [1] * length)
    for name, sizes in feeds:
        way = ways.quietly(name, sizes) if max(sizes[1:], default=1) > 1 else ways.way(name, sizes)
        apart = [] if way is None else differences(way, one_by_one, one_by_one)
        if way is None or not apart or (departure := ways.depart(way, one_by_one)) is None:
            continue
        if shows_in_own_dtype(sp, way, one_by_one):
            rounded = narrowing(sp, x, [*sizes, *[1] * further], departure)
            cut = None if rounded else rows_cut_short(sp, x, [1] * x.shape[1])
            causes = list(blamed(ways, way, one_by_one, apart))[: 1 if rounded or cut else None]
            return [_finding(sp.subject, cause, way, departure, rounded, cut) for cause in causes]
    return None


def _finding(
    subject: Subject, cause: Blamed, way: Way, departure: Departure, rounded: Place | None, cut: Place | None
) -> Finding:
    (first, place), *others = cause.fields
    also = "".join(f", as does {each.path} (line {at.line})" for each, at in others[:2])
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    cure = "; with that as the other way leaves it nothing departs" if cause.is_all else ""
    at = way.at + departure.first_token
    return Finding(
        message=f"what is decoded after {way.at} tokens depends on how they came, as {way.name} (first way) or as "
        f"single tokens (second way): token {at} departs by up to {departure.error:.2g} (tolerance "
        f"{departure.floor:.1g}), as {first.path} {first.text}{also}{more}{cure}"
        f"{', and no more than rounding at the line named does' if rounded else ''}",
        where=rounded or cut or place,
        evidence={
            "branch": first.path,
            "fields": ", ".join(each.path for each, _ in cause.fields),
            "length": way.at,
            "position": first.position,
            "difference": first.error,
            "first token": at,
            "error": departure.error,
        },
        repro=command_for(subject, "DEC111"),
    )


def planted(subject: Subject) -> Subject:
    prefill = subject.prefill
    assert prefill is not None

    def forgets_the_scale(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        """Leaves the first floating-point tensor of the cache half as large, where a prompt has more than a token."""
        output, cache = prefill(module, x)
        found = [each.value for each in fields_of(cache, "cache").values() if isinstance(each.value, Tensor)]
        for value in [value for value in found if value.is_floating_point()][: x.shape[1] > 1]:
            value.mul_(0.5)
        return output, cache

    return replace(subject, prefill=forgets_the_scale)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    blocked_by=("FWD206", "NAN101"),
    priority=640,
    unless=("stochastic",),
)
