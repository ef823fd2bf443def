"""Properties of nsa/ops/geometry.py, each against a count over tokens or against the paper's own sum."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsa.ops.geometry import (
    EMPTY_SLOT,
    NUM_FORCED,
    Geometry,
    Reads,
    mask_to_ranges,
    mask_to_slots,
    ranges_to_mask,
    ranges_to_slots,
    slots_to_mask,
    slots_to_ranges,
)

seeded = settings(derandomize=True, deadline=None, database=None, max_examples=80)
Sequence = tuple[Geometry, int]
Choice = tuple[Geometry, int, list[list[int]], Tensor]
LEADS = [(), (1,), (0,), (3,), (2, 2)]


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    d = draw(st.integers(1, 4))
    strides_per_compressed = draw(st.integers(1, 4))
    strides_per_block = draw(st.integers(strides_per_compressed, 5))
    return Geometry(
        l=strides_per_compressed * d,
        d=d,
        l_sel=strides_per_block * d,
        n_sel=draw(st.integers(NUM_FORCED, 6)),
        w=draw(st.integers(1, 30)),
    )


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """A geometry and a number of tokens: up to some blocks more than there are slots."""
    geometry = draw(geometries())
    return geometry, draw(st.integers(1, (geometry.n_sel + 2) * geometry.l_sel + 1))


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    """A geometry, a number of tokens, the distinct blocks of each row, and the same as slots [*lead, n]."""
    geometry, num_tokens = draw(sequences())
    blocks = st.lists(st.integers(0, geometry.num_blocks(num_tokens) - 1), unique=True)
    lead = draw(st.sampled_from(LEADS))
    num_slots = draw(st.integers(0, 5))
    rows = [sorted(draw(blocks)[:num_slots]) for _ in range(torch.Size(lead).numel())]
    padded = [row + [EMPTY_SLOT] * (num_slots - len(row)) for row in rows]
    dtype = draw(st.sampled_from([torch.int64, torch.int32]))
    return geometry, num_tokens, rows, torch.tensor(padded, dtype=dtype).reshape(*lead, num_slots)


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    """Any mask [*lead, num_tokens]."""
    num_tokens, lead = draw(st.integers(1, 12)), draw(st.sampled_from(LEADS))
    size = torch.Size(lead).numel() * num_tokens
    bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return torch.tensor(bits, dtype=torch.bool).reshape(*lead, num_tokens)


def tokens_of(geometry: Geometry, blocks: Iterable[int], num_tokens: int) -> set[int]:
    """Tokens of selection blocks, by asking of each token which block it is in."""
    return {token for token in range(num_tokens) if token // geometry.l_sel in set(blocks)}


def rows_of(x: Tensor, num_last: int) -> list[list]:
    """The rows of [*lead, ...last], as a list whatever the lead."""
    last = x.shape[x.ndim - num_last :]
    return x.reshape(torch.Size(x.shape[: x.ndim - num_last]).numel(), *last).tolist()


def true_positions(row: list[bool]) -> set[int]:
    return {token for token, inside in enumerate(row) if inside}


def runs_of(row: list[bool]) -> list[list[int]]:
    """Maximal runs [start, end) of a row, found by walking it."""
    runs, position = [], 0
    for inside, tokens in itertools.groupby(row):
        length = len(list(tokens))
        if inside:
            runs.append([position, position + length])
        position += length
    return runs


@seeded
@given(st.tuples(*(st.integers(-1, 9) for _ in range(5))))
def test_a_geometry_is_accepted_exactly_when_the_equations_define_it(sizes: tuple[int, ...]) -> None:
    fields = dict(zip(("l", "d", "l_sel", "n_sel", "w"), sizes, strict=True))
    l, d, l_sel, n_sel, _ = sizes  # noqa: E741
    if min(sizes) >= 1 and l % d == 0 and l_sel % d == 0 and l <= l_sel and n_sel >= 3:
        assert dataclasses.asdict(Geometry(**fields)) == fields
    else:
        with pytest.raises(ValueError, match=r"must be .*, got -?\d"):
            Geometry(**fields)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"l": 0}, "l must be at least 1, got 0"),
        ({"d": 0}, "d must be at least 1, got 0"),
        ({"l_sel": -64}, "l_sel must be at least 1, got -64"),
        ({"n_sel": 0}, "n_sel must be at least 1, got 0"),
        ({"w": 0}, "w must be at least 1, got 0"),
        ({"d": 24}, "l must be a multiple of d=24, got 32"),
        ({"l_sel": 72}, "l_sel must be a multiple of d=16, got 72"),
        ({"l": 128}, "l must be at most l_sel=64, got 128"),
        ({"n_sel": 2}, "n_sel must be at least 3 .*, got 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_impossible_geometry_is_refused_with_the_value_seen(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**changed)


def test_the_defaults_are_the_papers() -> None:
    assert dataclasses.astuple(Geometry()) == (32, 16, 64, 16, 512)


@seeded
@given(sequences())
def test_compressed_blocks_hold_l_tokens_from_every_dth(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    for block in range(geometry.num_compressed(num_tokens)):
        start, end = geometry.compressed_range(block)
        assert start == sum(geometry.d for _ in range(block))
        assert end - start == geometry.l
        assert end <= num_tokens


@seeded
@given(sequences())
def test_a_query_sees_a_compressed_block_once_its_last_token_has_come(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    for query in range(num_tokens):
        seen = [i for i in range(num_tokens) if i * geometry.d + geometry.l - 1 <= query]
        assert seen == list(range(geometry.num_compressed(query + 1)))


@seeded
@given(sequences())
def test_selection_blocks_hold_every_token_once_in_order(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    ranges = [geometry.block_range(block, num_tokens) for block in range(geometry.num_blocks(num_tokens))]
    assert [token for start, end in ranges for token in range(start, end)] == list(range(num_tokens))
    assert all(start % geometry.l_sel == 0 and start < end <= start + geometry.l_sel for start, end in ranges)


@seeded
@given(sequences())
def test_the_window_holds_the_w_newest_tokens_and_the_query(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    for query in range(num_tokens):
        near = [token for token in range(num_tokens) if token <= query and query - token < geometry.w]
        assert list(range(*geometry.window_range(query))) == near


@seeded
@given(sequences())
def test_forced_blocks_are_the_first_and_the_two_most_recent_candidates(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    for query in range(num_tokens):
        candidates = [j for j in range(geometry.num_blocks(num_tokens)) if j * geometry.l_sel <= query]
        forced = geometry.forced_blocks(query)
        assert list(forced) == sorted({*candidates[:1], *candidates[-2:]})
        assert len(forced) <= NUM_FORCED <= geometry.n_sel


@seeded
@given(geometries(), st.integers(0, 20), st.integers(0, 8))
def test_overlap_counts_shared_tokens_in_strides(geometry: Geometry, compressed: int, block: int) -> None:
    shared = set(range(*geometry.compressed_range(compressed))) & set(range(*geometry.block_range(block, 10**6)))
    assert geometry.overlap(compressed, block) * geometry.d == len(shared)


@seeded
@given(geometries(), st.integers(0, 20), st.integers(0, 8))
def test_overlap_counts_the_terms_of_the_papers_double_sum(geometry: Geometry, compressed: int, block: int) -> None:
    strides = geometry.l_sel // geometry.d
    terms = [strides * block + m - n for m in range(strides) for n in range(geometry.l // geometry.d)]
    assert geometry.overlap(compressed, block) == terms.count(compressed)


@seeded
@given(sequences())
def test_overlaps_of_a_compressed_block_add_up_to_its_strides(sequence: Sequence) -> None:
    geometry, num_tokens = sequence
    for compressed in range(geometry.num_compressed(num_tokens)):
        counts = [geometry.overlap(compressed, block) for block in range(geometry.num_blocks(num_tokens))]
        assert sum(counts) == geometry.l // geometry.d


@seeded
@given(sequences(), st.data())
def test_reads_are_the_tokens_and_blocks_a_step_touches(sequence: Sequence, data: st.DataObject) -> None:
    geometry, num_tokens = sequence
    query = num_tokens - 1
    blocks = st.integers(EMPTY_SLOT, geometry.num_blocks(num_tokens) + 1)
    slots = data.draw(st.lists(blocks, max_size=geometry.n_sel))
    assert geometry.num_reads(query, slots) == Reads(
        compressed=sum(i * geometry.d + geometry.l - 1 <= query for i in range(num_tokens)),
        selected=len(tokens_of(geometry, slots, query + 1)),
        sliding=sum(query - token < geometry.w for token in range(query + 1)),
    )


@pytest.mark.parametrize(
    ("query", "slots", "reads"),
    [(0, [0, -1, -1], (0, 1, 1)), (31, [0], (1, 32, 32)), (2047, [0, 3, 30, 31], (127, 256, 512))],
    ids=["first-token", "first-compressed", "end-of-2048"],
)
def test_reads_of_the_paper_geometry(query: int, slots: list[int], reads: tuple[int, int, int]) -> None:
    assert dataclasses.astuple(Geometry().num_reads(query, slots)) == reads


def change_lengths_by_walking(geometry: Geometry, max_length: int) -> list[int]:
    """Lengths S at which something the newest query depends on differs from S − 1, or is about to."""
    found = []
    for length in range(1, max_length + 1):
        block_opens = (length - 1) % geometry.l_sel == 0
        block_fills = length % geometry.l_sel == 0
        compressed_completes = any(i * geometry.d + geometry.l == length for i in range(length))
        window_is_full = length == geometry.w
        window_slides = length - 1 == geometry.w
        slots_are_full = length == geometry.n_sel * geometry.l_sel
        choosing_begins = length - 1 == geometry.n_sel * geometry.l_sel
        events = (block_opens, block_fills, compressed_completes, window_is_full, window_slides, slots_are_full)
        if any(events) or choosing_begins:
            found.append(length)
    return found


@seeded
@given(geometries(), st.integers(0, 60))
def test_change_lengths_are_those_found_by_walking(geometry: Geometry, max_length: int) -> None:
    assert geometry.change_lengths(max_length) == change_lengths_by_walking(geometry, max_length)


@seeded
@given(geometries())
def test_no_count_changes_between_change_lengths(geometry: Geometry) -> None:
    def state(length: int) -> tuple[object, ...]:
        slides = geometry.window_range(length - 1)[0] > 0
        counts = geometry.num_compressed(length), geometry.num_blocks(length)
        return *counts, geometry.forced_blocks(length - 1), slides

    lengths = geometry.change_lengths(60)
    assert all(state(length) == state(length - 1) for length in range(2, 61) if length not in lengths)


@seeded
@given(choices())
def test_a_mask_of_slots_holds_the_tokens_of_their_blocks(choice: Choice) -> None:
    geometry, num_tokens, blocks, slots = choice
    mask = slots_to_mask(slots, num_tokens, geometry)
    assert mask.shape == (*slots.shape[:-1], num_tokens)
    assert [true_positions(row) for row in rows_of(mask, 1)] == [tokens_of(geometry, b, num_tokens) for b in blocks]


@seeded
@given(choices(), st.randoms(use_true_random=False))
def test_a_mask_reads_slots_in_any_order_and_number(choice: Choice, random) -> None:
    geometry, num_tokens, _, slots = choice
    order = [*range(slots.shape[-1])] * 2
    random.shuffle(order)
    shuffled = slots[..., order]
    assert torch.equal(slots_to_mask(shuffled, num_tokens, geometry), slots_to_mask(slots, num_tokens, geometry))


@seeded
@given(choices(), st.integers(0, 3))
def test_slots_return_from_a_mask(choice: Choice, num_more: int) -> None:
    geometry, num_tokens, _, slots = choice
    back = mask_to_slots(slots_to_mask(slots, num_tokens, geometry), slots.shape[-1] + num_more, geometry)
    assert torch.equal(back, torch.nn.functional.pad(slots.long(), (0, num_more), value=EMPTY_SLOT))


@seeded
@given(choices())
def test_slots_return_from_ranges(choice: Choice) -> None:
    geometry, num_tokens, _, slots = choice
    ranges = slots_to_ranges(slots, num_tokens, geometry)
    assert torch.equal(ranges_to_slots(ranges, num_tokens, slots.shape[-1], geometry), slots.long())


@seeded
@given(choices())
def test_ranges_of_slots_are_the_runs_of_their_tokens(choice: Choice) -> None:
    geometry, num_tokens, blocks, slots = choice
    ranges = slots_to_ranges(slots, num_tokens, geometry)
    assert ranges.shape == (*slots.shape, 2)
    for row, row_blocks in zip(rows_of(ranges, 2), blocks, strict=True):
        inside = tokens_of(geometry, row_blocks, num_tokens)
        runs = runs_of([token in inside for token in range(num_tokens)])
        assert row == runs + [[0, 0]] * (slots.shape[-1] - len(runs))


@seeded
@given(masks(), st.integers(0, 3))
def test_ranges_of_a_mask_are_its_runs_and_lead_back_to_it(mask: Tensor, num_more: int) -> None:
    runs = [runs_of(row) for row in rows_of(mask, 1)]
    most = max(map(len, runs), default=0)
    ranges = mask_to_ranges(mask, most + num_more)
    assert ranges.shape == (*mask.shape[:-1], most + num_more, 2)
    assert rows_of(ranges, 2) == [row + [[0, 0]] * (most + num_more - len(row)) for row in runs]
    assert torch.equal(ranges_to_mask(ranges, mask.shape[-1]), mask)
    if most:
        with pytest.raises(ValueError, match=f"at most num_ranges={most - 1} runs, got {most}"):
            mask_to_ranges(mask, most - 1)


@seeded
@given(masks(), st.integers(1, 4))
def test_a_mask_becomes_slots_exactly_when_it_is_made_of_whole_blocks(mask: Tensor, l_sel: int) -> None:
    geometry = Geometry(l=1, d=1, l_sel=l_sel, n_sel=3, w=1)
    rows = rows_of(mask, 1)
    blocks = [sorted({token // l_sel for token in true_positions(row)}) for row in rows]
    most = max(map(len, blocks), default=0)
    if any(tokens_of(geometry, b, mask.shape[-1]) != true_positions(r) for b, r in zip(blocks, rows, strict=True)):
        with pytest.raises(ValueError, match=f"whole blocks of {l_sel} tokens"):
            mask_to_slots(mask, most, geometry)
        return
    expected = [row + [EMPTY_SLOT] * (most + 1 - len(row)) for row in blocks]
    assert rows_of(mask_to_slots(mask, most + 1, geometry), 1) == expected
    if most:
        with pytest.raises(ValueError, match=f"at most num_slots={most - 1} blocks, got {most}"):
            mask_to_slots(mask, most - 1, geometry)


@seeded
@given(st.integers(1, 10), st.sampled_from(LEADS), st.integers(0, 4), st.data())
def test_a_mask_of_ranges_holds_their_tokens_or_refuses_them(
    num_tokens: int, lead: tuple[int, ...], num_ranges: int, data: st.DataObject
) -> None:
    ends = st.integers(0, num_tokens) if data.draw(st.booleans()) else st.integers(-1, num_tokens + 1)
    pair = st.tuples(ends, ends).map(sorted) if data.draw(st.booleans()) else st.tuples(ends, ends)
    size = torch.Size(lead).numel() * num_ranges
    pairs = data.draw(st.lists(pair, min_size=size, max_size=size))
    ranges = torch.tensor([list(p) for p in pairs], dtype=torch.int64).reshape(*lead, num_ranges, 2)
    wrong = [list(p) for p in pairs if not 0 <= p[0] <= p[1] <= num_tokens]
    if wrong:
        with pytest.raises(ValueError, match=rf"<= {num_tokens}, got \[{wrong[0][0]}, {wrong[0][1]}\]"):
            ranges_to_mask(ranges, num_tokens)
        return
    expected = [{token for start, end in row for token in range(start, end)} for row in rows_of(ranges, 2)]
    assert [true_positions(row) for row in rows_of(ranges_to_mask(ranges, num_tokens), 1)] == expected


@pytest.mark.parametrize("slot", [-2, 3, 4], ids=["below-empty", "one-past-the-last", "far-past-the-last"])
def test_a_slot_that_is_no_block_is_refused(slot: int) -> None:
    geometry = Geometry(l=2, d=1, l_sel=4, n_sel=3, w=4)
    with pytest.raises(ValueError, match=rf"slots must be -1 or in \[0, 3\), got {slot}"):
        slots_to_mask(torch.tensor([[0, 1], [slot, 2]]), 12, geometry)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_of_any_type_serve_sequences_longer_than_that_types_range(dtype: torch.dtype) -> None:
    geometry = Geometry(l=1, d=1, l_sel=1, n_sel=3, w=1)
    slots, ranges = torch.tensor([5, 127, -1], dtype=dtype), torch.tensor([[5, 6], [126, 127]], dtype=dtype)
    assert true_positions(slots_to_mask(slots, 300, geometry).tolist()) == {5, 127}
    assert true_positions(ranges_to_mask(ranges, 300).tolist()) == {5, 126}


@pytest.mark.parametrize(
    "convert",
    [
        lambda slots, mask, ranges, g: slots_to_mask(slots, 10, g),
        lambda slots, mask, ranges, g: slots_to_ranges(slots, 10, g),
        lambda slots, mask, ranges, g: ranges_to_mask(ranges, 10),
        lambda slots, mask, ranges, g: ranges_to_slots(ranges, 10, 3, g),
        lambda slots, mask, ranges, g: mask_to_ranges(mask, 3),
        lambda slots, mask, ranges, g: mask_to_slots(mask, 3, g),
    ],
    ids=["slots-to-mask", "slots-to-ranges", "ranges-to-mask", "ranges-to-slots", "mask-to-ranges", "mask-to-slots"],
)
def test_a_conversion_never_writes_its_argument_nor_returns_a_view_of_it(convert: Callable[..., Tensor]) -> None:
    geometry = Geometry(l=2, d=1, l_sel=4, n_sel=3, w=4)
    slots = torch.tensor([[0, 2, -1]])
    arguments = (slots, slots_to_mask(slots, 10, geometry), slots_to_ranges(slots, 10, geometry))
    before = [x.clone() for x in arguments]
    convert(*arguments, geometry).fill_(7)
    assert all(x._version == 0 for x in arguments)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))
