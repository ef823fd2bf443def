"""Sizes to call a function with: ordinary ones, every edge of a tile, odd ones, unequal numbers of queries and keys."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_HEAD_SIZES = (64, 32, 16, 128, 96)
_LENGTHS = (64, 128, 256)


def ordinary(subject: FunctionSubject) -> list[Shape]:
    """Shapes that nearly every function serves, the most usual first."""
    spec = subject.spec
    sizes = spec.head_sizes or _HEAD_SIZES
    found = []
    for length in _LENGTHS:
        for head in sizes:
            heads = spec.heads or spec.ratio * max(2, 4 // spec.ratio)
            found.append(_shape(subject, 2, length, heads, head))
    return [*found, *_of_one_head(subject)]


def _of_one_head(subject: FunctionSubject) -> Iterator[Shape]:
    """Those of one head of keys, and of one row, for functions that serve no more."""
    ratio = subject.spec.ratio
    for head in subject.spec.head_sizes or _HEAD_SIZES:
        if subject.spec.heads is None:
            yield _shape(subject, 2, _LENGTHS[0], ratio, head)
        yield _shape(subject, 1, _LENGTHS[0], subject.spec.heads or ratio, head)


def _shape(subject: FunctionSubject, batch: int, length: int, heads: int, head: int) -> Shape:
    convention, spec = subject.convention, subject.spec
    shape = Shape(
        batch=1 if convention.has_parts else batch,
        queries=length,
        keys=length,
        heads=heads,
        groups=heads // spec.ratio,
        head=head,
        value=spec.value_size or head,
    )
    return of_length(subject, shape, length, length)


def of_length(subject: FunctionSubject, shape: Shape, queries: int, keys: int) -> Shape:
    """The shape at another length: in sequences where the convention has them, in a cache filled in part."""
    if subject.convention.has_parts:
        parts = _parts(queries, keys)
        return replace(shape, queries=queries, keys=keys, parts=parts)
    if subject.convention.is_cache:
        few = min(queries, max(1, keys // 4)) if queries == keys else queries
        filled = tuple(max(few, keys - 5 * row) for row in range(shape.batch))
        return replace(shape, queries=few, keys=keys, filled=filled)
    return replace(shape, queries=queries, keys=keys)


def _parts(queries: int, keys: int) -> tuple[tuple[int, int], ...]:
    """Three sequences, of about a half, a third and the rest, the longest first or, at even lengths, in the middle.

    The last one takes what is left where another would have no query or no key.
    """
    first, second = (queries // 2, keys // 2), (queries // 3, keys // 3)
    rest = (queries - first[0] - second[0], keys - first[1] - second[1])
    parts = (first, second, rest) if keys % 2 else (second, first, rest)
    kept = [part for part in parts if min(part) > 0]
    left = (queries - sum(part[0] for part in kept), keys - sum(part[1] for part in kept))
    return *kept[:-1], (kept[-1][0] + left[0], kept[-1][1] + left[1])


def _again(subject: FunctionSubject, problem: Problem) -> float:
    """Seconds of a second call, which neither compiles nor loads anything."""
    begin = time.perf_counter()
    ask(subject, problem)
    return time.perf_counter() - begin


def base(subject: FunctionSubject) -> Shape:
    """The first ordinary shape that the function serves, and the first of all where it serves none."""
    if "base" not in subject.known:
        shapes = ordinary(subject)
        subject.known["base"], subject.known["seconds"] = shapes[0], 0.0
        for shape in shapes:
            problem = problem_of(subject, shape)
            begin = time.perf_counter()
            if ask(subject, problem).failure is None:
                begin = min(time.perf_counter() - begin, _again(subject, problem))
                subject.known["base"], subject.known["seconds"] = shape, begin
                break
    found: Shape = subject.known["base"]
    return found


_TILES = {
    "smoke": (64, 128),
    "quick": (16, 32, 64, 96, 128, 256, 512),
    "full": (*range(16, 144, 16), 160, 192, 256, 384, 512),
}
_ODD = {
    "smoke": (1, 17, 31),
    "quick": (1, 2, 3, 7, 48, 191, 200),
    "full": (1, 2, 3, 5, 7, 8, 9, 23, 100, 200, 300, 1000),
}
_LONGEST = {"smoke": 600, "quick": 1100, "full": 4200}  # to see the end of a window
_SECONDS = {"smoke": 5.0, "quick": 25.0, "full": 250.0}  # of calls at all lengths, where one takes long


def lengths(subject: FunctionSubject) -> tuple[int, ...]:
    """Edges of tiles and their neighbours, and those of the declared window; the longest not of a slow function."""
    found = {tile + step for tile in _TILES[subject.profile] for step in (-1, 0, 1)} | set(_ODD[subject.profile])
    for side in subject.spec.window or ():
        if 0 < side < _LONGEST[subject.profile]:
            found |= {side, side + 1, side + 2}
    kept = sorted(found)
    while len(kept) > _FEWEST and sum(expected_seconds(subject, length) for length in kept) > _SECONDS[subject.profile]:
        kept.pop()
    return tuple(kept)


_FEWEST = 4
_MANY_HEADS_TO, _FEW_HEADS = 200, 16


def left_out(subject: FunctionSubject) -> str:
    """Why long inputs are left out; empty where they are not."""
    longest = max(max(_TILES[subject.profile]) + 1, *(side + 2 for side in subject.spec.window or (0,)))
    last = lengths(subject)[-1]
    seconds = expected_seconds(subject, last)
    return (
        f"examined up to S={last}: a call there takes about {seconds:.1g} s" if last < longest and seconds > 0.1 else ""
    )


def expected_seconds(subject: FunctionSubject, length: int) -> float:
    """How long a call takes there, if its time grows with the square of the length."""
    shape = base(subject)
    seconds: float = subject.known["seconds"]
    return seconds * (length / shape.keys) ** 2


def at_length(subject: FunctionSubject, length: int) -> Shape:
    """The base shape at that length, or at the next one that is served: some functions take whole blocks alone."""
    key = ("at_length", length)
    if key not in subject.known:
        lengths = [-(-length // multiple) * multiple for multiple in (1, 16, 64, 128)]
        tried = [of_length(subject, base(subject), each, each) for each in lengths]
        subject.known[key] = next((shape for shape in tried if _is_served(subject, shape)), tried[0])
    found: Shape = subject.known[key]
    return found


def _is_served(subject: FunctionSubject, shape: Shape) -> bool:
    return ask(subject, problem_of(subject, shape), Asking(wants=())).failure is None


def square(subject: FunctionSubject) -> Iterator[Shape]:
    """The base shape at each length, short batches; at great lengths no more than 16 heads, or one group of them."""
    shape = base(subject)
    for length in lengths(subject):
        each = replace(shape, batch=min(shape.batch, 1 if length > 100 else 2))
        if length > _MANY_HEADS_TO and subject.spec.heads is None:
            each = _few_heads(each, subject.spec.ratio)
        yield of_length(subject, each, length, length)


def _few_heads(shape: Shape, ratio: int) -> Shape:
    groups = min(shape.groups, max(1, _FEW_HEADS // ratio))
    return replace(shape, heads=groups * ratio, groups=groups)


def unequal(subject: FunctionSubject) -> Iterator[Shape]:
    """Other numbers of queries than of keys."""
    if subject.spec.is_square or subject.convention.make is not None:
        return
    pairs: Sequence[tuple[int, int]] = ((1, 17), (5, 12), (33, 65), (64, 129), (100, 100 + 64), (130, 40), (65, 33))
    pairs = pairs[:4] if subject.profile == "smoke" else pairs
    for queries, keys in pairs:
        if queries > keys and (subject.spec.is_causal or subject.spec.window or subject.convention.is_cache):
            continue
        yield of_length(subject, replace(base(subject), batch=1 if subject.convention.has_parts else 2), queries, keys)


def hidden(subject: FunctionSubject, count: int) -> Iterator[Shape]:
    """Shapes that nobody writes down: lengths, batches, heads and head sizes drawn at random."""
    chance = torch.Generator().manual_seed(7_368_787 * (subject.seed + 1))
    shape, spec = base(subject), subject.spec

    def between(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=chance))

    for _ in range(count):
        groups = between(1, max(2, min(5, _MANY_HEADS // spec.ratio))) if spec.heads is None else shape.groups
        head = shape.head if spec.head_sizes else between(3, 20) * 8
        yield of_length(
            subject,
            replace(
                shape,
                batch=1 if subject.convention.has_parts else between(1, 3),
                heads=groups * spec.ratio,
                groups=groups,
                head=head,
                value=spec.value_size or head,
            ),
            *((length := between(18, 150)), length),
        )


_MANY = 11  # heads of keys: more than eight, and an odd number


def other_sizes(subject: FunctionSubject) -> Iterator[Shape]:
    """Head sizes that few functions serve, many heads, values of another size than keys; few claim them all."""
    shape = base(subject)
    for head in (8, 24, 40, 72, 80, 256) if not subject.spec.head_sizes else ():
        yield replace(shape, head=head, value=head)
    if subject.spec.heads is None:
        many = replace(shape, batch=1, groups=_MANY, heads=_MANY * subject.spec.ratio, filled=shape.filled[:1])
        yield of_length(subject, many, 24, 24)
    if subject.spec.value_size is None:
        yield replace(shape, value=shape.head // 2)
        yield replace(shape, value=shape.head * 2)


_LONG = {"quick": 1025, "full": 2049}


def long(subject: FunctionSubject) -> Iterator[Shape]:
    """One long input of few heads, where no input was too long before."""
    length = _LONG.get(subject.profile)
    if length is None or lengths(subject)[-1] < max(_TILES[subject.profile]):
        return
    ratio = subject.spec.ratio
    shape = replace(base(subject), batch=1, filled=base(subject).filled[:1])
    few = shape if subject.spec.heads is not None else replace(shape, heads=ratio, groups=1)
    yield of_length(subject, few, length, length)


_MANY_HEADS = 32
_HIDDEN = {"smoke": 3, "quick": 12, "full": 40}


def every(subject: FunctionSubject) -> Iterator[Shape]:
    """All of them: each length, other numbers of queries than of keys, shapes drawn at random, other head sizes."""
    yield from square(subject)
    yield from long(subject)
    yield from unequal(subject)
    yield from hidden(subject, _HIDDEN[subject.profile])
    yield from other_sizes(subject)
