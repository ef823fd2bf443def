"""Functions between slots, ranges, masks and counts, as `nsa.ops.geometry` has them, against plain sets."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.measurement import Place
from nsa_doctor.fuzz import plain_rules as rules
from nsa_doctor.fuzz.cases import Grid, MaskRows, RangeRows, SlotRows
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.properties.tensors import Watch, laid_out, listed
from nsa_doctor.probes.hooks.phase import ask

_REFUSED = "refused"


def examine(case: Grid | SlotRows | RangeRows | MaskRows, spans: Any) -> Iterator[Failure]:
    """What does not hold for this case; `spans` offers the functions of `nsa.ops.geometry` by their names."""
    match case:
        case Grid():
            yield from _grid(case, spans)
        case SlotRows():
            yield from _slots(case, spans)
        case RangeRows():
            yield from _ranges(case, spans)
        case MaskRows():
            yield from _mask(case, spans)


def place_of(function: Callable[..., Any]) -> Place:
    """Where a function under test is defined."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    module = getattr(function, "__module__", "") or ""
    if code is None:
        return Place(module=module)
    return Place(module=module, file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


def _slots(case: SlotRows, spans: Any) -> Iterator[Failure]:
    geometry, slots = _geometry(case.l_sel, spans), _integers(case.rows, case)
    rows: list[list[int]] = listed(slots)
    tokens = [rules.tokens_of_slots(row, case.num_tokens, case.l_sel) for row in rows]
    is_valid, num_slots = None not in tokens, slots.shape[-1]
    wanted = [sorted(found or ()) for found in tokens] if is_valid else _REFUSED
    yield from _compare(spans, "slots_to_mask", _tokens, wanted, slots, case.num_tokens, geometry)
    ranges = [rules.runs(found or set()) for found in tokens] if is_valid else _REFUSED
    yield from _compare(
        spans, "slots_to_ranges", _runs, _filled(ranges, num_slots, [0, 0]), slots, case.num_tokens, geometry
    )
    if is_valid:
        mask = torch.tensor([[token in (found or ()) for token in range(case.num_tokens)] for found in tokens])
        unique = [sorted(set(row) - {-1}) for row in rows]
        yield from _compare(spans, "mask_to_slots", _same, _filled(unique, num_slots, -1), mask, num_slots, geometry)
        yield from _round_trip(slots, unique, case.num_tokens, geometry, spans)


def _round_trip(
    slots: Tensor, unique: list[list[int]], num_tokens: int, geometry: Geometry, spans: Any
) -> Iterator[Failure]:
    """Slots to ranges and back are the same blocks, and once more changes nothing."""
    num_slots = slots.shape[-1]

    def there_and_back(given: Tensor) -> Tensor:
        ranges = spans.slots_to_ranges(given, num_tokens, geometry)
        return spans.ranges_to_slots(ranges, num_tokens, num_slots, geometry)

    once = ask("forward", lambda: there_and_back(slots), None)
    if listed(once) != _filled(unique, num_slots, -1):
        message = f"slots to ranges and back are {listed(once)}, expected {_filled(unique, num_slots, -1)}"
        yield Failure(
            violation=Violation.SPANS_DISAGREE,
            name="round trip",
            message=message,
            where=place_of(spans.ranges_to_slots),
        )
    elif listed(ask("forward", lambda: there_and_back(once), None)) != listed(once):
        message = "slots to ranges and back differ the second time"
        yield Failure(
            violation=Violation.SPANS_DISAGREE,
            name="not idempotent",
            message=message,
            where=place_of(spans.ranges_to_slots),
        )


def _ranges(case: RangeRows, spans: Any) -> Iterator[Failure]:
    geometry, ranges = _geometry(case.l_sel, spans), _integers(case.rows, case)
    rows = listed(ranges)
    tokens = [rules.tokens_of_ranges(row, case.num_tokens) for row in rows]
    is_valid = None not in tokens
    wanted = [sorted(found or ()) for found in tokens] if is_valid else _REFUSED
    yield from _compare(spans, "ranges_to_mask", _tokens, wanted, ranges, case.num_tokens)
    blocks = [rules.blocks_of(found or set(), case.num_tokens, case.l_sel) for found in tokens]
    fits = is_valid and all(found is not None and len(found) <= case.num_slots for found in blocks)
    expected = _filled([found or [] for found in blocks], case.num_slots, -1) if fits else _REFUSED
    yield from _compare(spans, "ranges_to_slots", _same, expected, ranges, case.num_tokens, case.num_slots, geometry)


def _mask(case: MaskRows, spans: Any) -> Iterator[Failure]:
    geometry = _geometry(case.l_sel, spans)
    mask = laid_out(torch.tensor(case.rows, dtype=torch.bool), case.layout)
    num_tokens = mask.shape[-1]
    tokens = [{token for token, inside in enumerate(row) if inside} for row in listed(mask)]
    runs = [rules.runs(found) for found in tokens]
    fits = all(len(found) <= case.num_ranges for found in runs)
    wanted = _filled(runs, case.num_ranges, [0, 0]) if fits else _REFUSED
    yield from _compare(spans, "mask_to_ranges", _runs, wanted, mask, case.num_ranges)
    blocks = [rules.blocks_of(found, num_tokens, case.l_sel) for found in tokens]
    fits = all(found is not None and len(found) <= case.num_slots for found in blocks)
    expected = _filled([found or [] for found in blocks], case.num_slots, -1) if fits else _REFUSED
    yield from _compare(spans, "mask_to_slots", _same, expected, mask, case.num_slots, geometry)


def _grid(case: Grid, spans: Any) -> Iterator[Failure]:
    names = ("l", "d", "l_sel", "n_sel", "w")
    sizes = dict(zip(names, case.sizes, strict=True))
    kind = spans.Geometry
    try:
        geometry = ask("build", lambda: kind(**sizes), None)
    except SubjectFailedError as failure:
        if not isinstance(failure.caught.error, ValueError):
            raise
        if rules.is_geometry(**sizes):
            yield Failure(
                violation=Violation.VALID_REFUSED,
                message=f"Geometry refuses {sizes}",
                where=place_of(kind.__post_init__),
            )
        return
    if not rules.is_geometry(**sizes):
        yield Failure(
            violation=Violation.INVALID_ACCEPTED, message=f"Geometry takes {sizes}", where=place_of(kind.__post_init__)
        )
        return
    for name, given, wanted in _grid_facts(case, sizes, spans):
        method = getattr(kind, name)
        got = ask("forward", lambda name=name, given=given: getattr(geometry, name)(*given), None)
        if got != wanted:
            call = f"{name}({', '.join(map(str, given))})"
            yield Failure(
                violation=Violation.SPANS_DISAGREE,
                name=f"{name} wrong",
                message=f"{call} is {got}, expected {wanted}",
                where=place_of(method),
            )


def _grid_facts(case: Grid, sizes: dict[str, int], spans: Any) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """(method, arguments, what plain sets give)."""
    l, d, l_sel, _, w = case.sizes  # noqa: E741
    num_tokens, query = case.num_tokens, case.query
    compressed, blocks = rules.compressed_blocks(num_tokens, l, d), rules.selection_blocks(num_tokens, l_sel)
    yield "num_compressed", (num_tokens,), len(compressed)
    yield "num_blocks", (num_tokens,), len(blocks)
    if compressed:
        yield "compressed_range", (len(compressed) - 1,), (min(compressed[-1]), max(compressed[-1]) + 1)
        for block in {0, len(blocks) - 1}:
            shared = len(compressed[-1] & set(range(block * l_sel, (block + 1) * l_sel))) // d
            yield "overlap", (len(compressed) - 1, block), shared
    yield "block_range", (len(blocks) - 1, num_tokens), (min(blocks[-1]), max(blocks[-1]) + 1)
    seen = rules.window(query, w)
    yield "window_range", (query,), (min(seen), max(seen) + 1)
    yield "forced_blocks", (query,), tuple(sorted(rules.forced(query, l_sel)))
    yield "change_lengths", (min(num_tokens, 64),), rules.change_lengths(min(num_tokens, 64), **sizes)
    read = {token for slot in case.slots if slot >= 0 for token in range(slot * l_sel, (slot + 1) * l_sel)}
    selected = sum(token <= query for token in read)
    counts = spans.Reads(len(rules.visible_compressed(query, l, d)), selected, len(seen))
    yield "num_reads", (query, tuple(case.slots)), counts


def _compare(
    spans: Any, name: str, reading: Callable[[Tensor], Any], wanted: Any, tensor: Tensor, *arguments: Any
) -> Iterator[Failure]:
    """One function on one tensor: what it returns or refuses, and that it leaves the tensor alone."""
    function = getattr(spans, name)
    watch, place = Watch().over(argument=tensor), place_of(function)
    try:
        got = reading(ask("forward", lambda: function(tensor, *arguments), None))
    except SubjectFailedError as failure:
        if not isinstance(failure.caught.error, ValueError):
            raise
        got = _REFUSED
    if watch.written():
        message = f"{name} writes into the tensor it is given"
        yield Failure(violation=Violation.ARGUMENT_WRITTEN, message=message, where=place)
    if got != wanted:
        message = f"{name} gives {got}, expected {wanted}"
        violation, wrong = _wrong(got == _REFUSED, wanted == _REFUSED)
        yield Failure(violation=violation, name=f"{name}: {wrong}", message=message, where=place)


def _wrong(is_refused: bool, must_be_refused: bool) -> tuple[Violation, str]:
    if is_refused:
        return Violation.VALID_REFUSED, "valid refused"
    if must_be_refused:
        return Violation.INVALID_ACCEPTED, "invalid accepted"
    return Violation.SPANS_DISAGREE, "wrong answer"


def _tokens(mask: Tensor) -> list[list[int]]:
    return [[token for token, inside in enumerate(row) if inside] for row in listed(mask)]


def _runs(ranges: Tensor) -> Any:
    return listed(ranges)


_same = _runs


def _filled(rows: Any, size: int, filling: Any) -> Any:
    return rows if rows == _REFUSED else [[*row, *[filling] * (size - len(row))] for row in rows]


def _geometry(l_sel: int, spans: Any) -> Geometry:
    geometry: Geometry = spans.Geometry(l=1, d=1, l_sel=l_sel, n_sel=3, w=1)
    return geometry


def _integers(rows: Any, case: SlotRows | RangeRows) -> Tensor:
    values = torch.tensor(rows, dtype=torch.int64)
    if values.ndim < (3 if isinstance(case, RangeRows) else 2) or not values.numel():  # no ranges, no slots
        values = values.reshape(len(rows), 0, *([2] if isinstance(case, RangeRows) else []))
    narrow = torch.iinfo(torch.int32)
    if case.dtype == "int32":
        values = values.clamp(narrow.min, narrow.max).to(torch.int32)
    return laid_out(values, case.layout)
