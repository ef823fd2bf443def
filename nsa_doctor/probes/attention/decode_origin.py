"""The line on which decoding begins to compute what one pass over all tokens does not.

Each result of the part that departs is looked up among those of the whole pass, row by row. What earlier parts that did
not depart lack as well is another way of computing the same, and does not count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.fed_parts import Feed, Part, controls_of
from nsa_doctor.probes.hooks.field_writers import MOVING, FieldWriters, OwnLine, Write, as_far_as_the_module
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import memory_of, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.known_constants import KnownConstants
from nsa_doctor.probes.tensors.known_rows import Asked, KnownRows, row_of, tells
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments

_MOST_OPERATIONS = 60_000
_MOST_TELLING = 3  # lines under way that tell one value from another
_MOST_UPSTREAM = 64
_HIDING = ("masked_fill", "where")
_COMPARING = ("eq", "ge", "gt", "le", "lt", "ne")
_MOST_CALLERS = 4  # of an operation, itself among them: what is called further out passes too much on

_Lines = tuple[tuple[str, int], ...]
_Key = tuple[str, _Lines]


@dataclass(frozen=True)
class _Seen:
    """One operation: who made what it reads, whether the whole pass lacks its result, who wrote what it lacks there.

    `is_open` of a mask that shows all that is there, which is less than the whole pass shows. `repeated_on` is the line
    whose function made of other numbers what an earlier part had.
    """

    name: str
    lines: tuple[OwnLine, ...]
    place: Place
    makers: tuple[int, ...]
    part: int
    sizes: tuple[int, ...]
    is_fed: bool
    is_silent: bool
    lacks: bool
    is_open: bool
    repeated_on: OwnLine | None
    sources: tuple[Write, Write] | None

    @property
    def key(self) -> _Key:
        """The same for the same operation of another part."""
        return self.name, tuple((line.file, line.line) for line in self.lines)


@dataclass(frozen=True)
class Origin:
    """Where decoding begins to depart, and whether by what depends on positions and not on the input."""

    place: Place
    is_of_positions: bool


def first_unknown(
    sp: BuiltModule, x: Tensor, whole: Callable[[], object], feed: Feed, parts: Sequence[Part], token: int
) -> Origin | None:
    """Where the last of these parts departs at a token, which `feed` feeds, telling which part comes; None if not seen.

    What was before that token did not depart. Of a value that was left wrong by an earlier part, where that was
    written.
    """
    frames = FrameFilter(sp.subject.packages)
    places = Places(frames)
    places.know(sp.module)
    known = _Known(KnownRows(x.shape[1]), KnownConstants(x.shape[1]))
    expected = _Watcher(places, frames, known, x)
    with torch.no_grad(), expected.watching():
        whole()
    last = len(parts) - 1
    alike = [n for n, each in enumerate(parts[:-1]) if each.end - each.start == parts[-1].end - parts[-1].start]
    controls = controls_of(feed, parts, alike)

    def fed(parts: Sequence[Part], judged: set[int]) -> list[_Seen]:
        watcher = _Watcher(places, frames, known, x, parts, judged)
        with torch.no_grad(), watcher.watching():
            feed(watcher.begin, parts)
        return watcher.seen

    seen = fed(parts, {*controls, last})
    if len(seen) > _MOST_OPERATIONS:
        return None
    usual = {each.key for each in seen if each.lacks and each.part < last}
    if not alike and parts[-1].start < token:  # what the tokens before it lack when they are fed without it
        shorter = fed([*parts[:-1], Part(parts[-1].start, token)], {last})
        usual |= {each.key for each in shorter if each.lacks}
    number = _first_of(seen, last, usual)
    passed = {at for each in expected.seen for at in each.key[1]}
    place = None if number is None else _place(seen, number, passed, parts[-1])
    return None if number is None or place is None else Origin(place, is_of_positions=not seen[number].is_fed)


@dataclass(frozen=True)
class _Known:
    """What the pass over all tokens computed: rows of what depends on the input, and what does not."""

    rows: KnownRows
    constants: KnownConstants


class _Watcher(FieldWriters):
    """Learns what a pass computes, or, of some of the parts that are fed, judges what they do by what is known."""

    def __init__(
        self,
        places: Places,
        frames: FrameFilter,
        known: _Known,
        x: Tensor,
        parts: Sequence[Part] = (),
        judged: set[int] | None = None,
    ) -> None:
        super().__init__(places, frames)
        self.seen: list[_Seen] = []
        self._known, self._parts, self._judged = known, parts, judged or set()
        self._earlier: dict[tuple[str, _Lines], list[tuple[Tensor, tuple[OwnLine, ...]]]] = defaultdict(list)
        self._uncertain = set[int]()  # what does not depend on the input and could not be judged
        self._part = 0
        self._makers: dict[int, int] = {}
        self._num_writes: dict[int, int] = defaultdict(int)
        self._fed = {memory_of(x)}  # what depends on the input; the rest is weights, masks and positions

    def begin(self, part: int) -> None:
        """The part of that number comes next."""
        self._part = part

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and look at its results."""
        read = tensors_in(args, kwargs)
        given = {memory_of(tensor) for tensor in read}
        keys = (*given, *(-id(tensor) for tensor in read))  # what was written there last, and who looked at it so
        makers = tuple({self._makers[key] for key in keys if key in self._makers})
        result = super().run_operation(func, args, kwargs)
        written, results = tensors_in(written_arguments(func, args, kwargs)), tensors_in(result)
        made = [each for each in results if memory_of(each) not in given]
        is_view, is_fed = not made and not written, bool(given & self._fed)
        changed = [memory_of(each) for each in (*made, *written)] if not is_view else [-id(each) for each in results]
        self._makers.update(dict.fromkeys(changed, len(self.seen)))
        self._num_writes.update((key, self._num_writes[key] + 1) for key in set(changed))
        self.alive += [*results, *written]
        self._fed.update(memory_of(each) for each in (*made, *written) if is_fed)
        name, lacking, is_known, repeated_on = operation_name(func), None, False, None
        is_judged = self._part in self._judged
        lines = self.lines_of(frame_above(1)) if is_judged or not self._parts or not is_fed else ()
        nearest = tuple((line.file, line.line) for line in as_far_as_the_module(lines[:_MOST_TELLING]))
        if not self._parts:
            for tensor in (*results, *written):
                if is_fed:
                    self._known.rows.learn(tensor, name)
                else:
                    self._known.constants.learn(tensor, name, nearest)
        elif not is_fed:
            lacking, is_known = self._elsewhere(name, read, results[:1], nearest)
            if not read and results:
                repeated_on, is_again = self._repeated(name, results[0], lines, nearest)
                lacking = results[0] if is_again else lacking
            lacking = lacking if is_judged else None
        elif is_judged and is_fed and (not is_view or any(self._is_kept(key) for key in given)):
            lacking = self._lacking(
                "" if is_view else name, (*results[:1], *written)
            )  # further results are sums beside it
        sources = None
        if lacking is not None and (name in MOVING or is_view):
            with untraced():
                sources = self.of(lacking)
        sizes = tuple(results[0].shape) if results else ()
        is_silent = not is_known and (is_view or not is_fed or not any(map(tells, results[:1])))
        place = Place() if lacking is None else self.places.of_frame(frame_above(1)) or Place()
        is_open = bool(self._parts) and not is_fed and name in _COMPARING and self._is_open(name, results[0], nearest)
        facts = (is_fed, is_silent, lacking is not None, is_open, repeated_on, sources)
        self.seen.append(_Seen(name, lines, place, makers, self._part, sizes, *facts))
        return result

    def _repeated(
        self, operation: str, result: Tensor, lines: tuple[OwnLine, ...], nearest: _Lines
    ) -> tuple[OwnLine | None, bool]:
        """The line whose function was given other numbers then, and whether an earlier part had the same.

        That counts where the whole pass has it once.
        """
        earlier = self._earlier[operation, nearest]
        with untraced():
            known = self._known.constants
            before = [under_way for each, under_way in earlier if known.is_again(result, operation, nearest, each)]
            earlier.append((result.detach().clone(), lines))
        pairs = zip(lines, before[-1], strict=False) if before else ()
        return next((line for line, other in pairs if line.numbers != other.numbers), None), bool(before)

    def _is_open(self, operation: str, mask: Tensor, lines: _Lines) -> bool:
        part = self._parts[self._part]
        with untraced():
            return self._known.constants.shows_more(mask, Asked(operation, part.start, part.end - part.start), lines)

    def _is_kept(self, key: int) -> bool:
        """Whether that memory was written to several times, or by an earlier part."""
        maker = self._makers.get(key)
        return self._num_writes[key] > 1 or (maker is not None and self.seen[maker].part < self._part)

    def _elsewhere(
        self, operation: str, read: Sequence[Tensor], results: Sequence[Tensor], lines: _Lines
    ) -> tuple[Tensor | None, bool]:
        """The result, where it is of other tokens than these, and whether it is of these.

        What is computed from what could not be judged is not called wrong.
        """
        part = self._parts[self._part]
        asked = Asked(operation, part.start, part.end - part.start)
        is_uncertain = any(memory_of(tensor) in self._uncertain for tensor in read)
        lacking, is_known = None, False
        for tensor in results:
            with untraced():
                standing = self._known.constants.standing(tensor, asked, lines)
            is_known |= standing == "in place"
            if standing == "elsewhere" and not is_uncertain:
                lacking = tensor if lacking is None else lacking
            elif standing == "unknown" or (standing == "elsewhere" and is_uncertain):
                self._uncertain.add(memory_of(tensor))
        return lacking, is_known

    def _lacking(self, operation: str, results: Sequence[Tensor]) -> Tensor | None:
        """The first row of these results that no known one is, or, of those of a view, that nothing was written to."""
        part = self._parts[self._part]
        for tensor in results:
            numbers = self._known.rows.unknown(tensor, Asked(operation, part.start, part.end - part.start))
            with untraced():
                if numbers is not None:
                    return row_of(tensor, int(numbers[0]))
                if operation in MOVING and (row := self._known.rows.out_of_order(tensor)) is not None:
                    return row
                empty = self.unfilled(tensor) if not operation and tensor.ndim else None
                rows = torch.zeros(1, dtype=torch.bool) if empty is None else empty.reshape(-1, empty.shape[-1]).all(1)
                if bool(rows.any()) and not bool(rows.all()):  # all of them are room to write into
                    return row_of(tensor, int(rows.nonzero()[0, 0]))
        return None


def _first_of(seen: Sequence[_Seen], part: int, usual: set[_Key]) -> int | None:
    """The number of the first operation, of those through which the part departs, whose inputs are right.

    `usual` is what is lacking where nothing departs. Inputs that lack are wrong, be it usual or not.
    """
    lacking = {number for number, each in enumerate(seen) if each.lacks and each.part == part}
    unusual = {number for number in lacking if seen[number].key not in usual}
    if not lacking:
        return None
    begun = _reached(seen, lacking, max(unusual or lacking)) & unusual
    roots = {number for number in begun if not lacking.intersection(_makers(seen, number))}
    return min(roots | _reached(seen, unusual or lacking, max(unusual or lacking)))


def _makers(seen: Sequence[_Seen], number: int) -> set[int]:
    """Who made what an operation reads, through what tells nothing."""
    waiting, found = list(seen[number].makers), set[int]()
    while waiting:
        maker = waiting.pop()
        if maker not in found:
            found.add(maker)
            waiting += seen[maker].makers if seen[maker].is_silent and not seen[maker].lacks else ()
    return found


def _reached(seen: Sequence[_Seen], chosen: set[int], last: int) -> set[int]:
    """Those from which what the last of them made was computed, by way of each other and of what tells nothing."""
    waiting, reached = [last], set[int]()
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += [maker for maker in seen[number].makers if maker in chosen or seen[maker].is_silent]
    return reached & chosen


def _place(seen: Sequence[_Seen], number: int, passed: set[tuple[str, int]], part: Part) -> Place | None:
    """The line at fault for an operation.

    Of what depends on positions and not on the input, the line in the function that is given no numbers, or right ones.
    """
    guilty, line = seen[number], None
    if not guilty.is_fed and guilty.lines:
        line = guilty.repeated_on or next(
            (line for line in guilty.lines if _are_right(line.numbers, part)), guilty.lines[-1]
        )
    else:
        line = next(_suspects(seen, number, passed, part), None)
    return None if line is None else replace(guilty.place, file=line.file, line=line.line, function=line.function)


def _suspects(seen: Sequence[_Seen], number: int, passed: set[tuple[str, int]], part: Part) -> Iterator[OwnLine]:
    """Lines that may be at fault for an operation, one more telling than the next.

    Those that call with wrong numbers, if all that it reads is right; of what hides scores, the line of the mask; the
    innermost that the whole pass does not run: it calls what both share with other arguments; the nearest such line
    that had a part in what the operation reads, if that is not all tokens so far: a window that lost some of them. Of
    lines beyond the innermost module only the one that calls it may be meant, as others pass everything on.
    """
    guilty, stacks = seen[number], [seen[number].lines]
    if guilty.sources is not None:
        stacks = [guilty.sources[0].lines, guilty.sources[1].lines, guilty.lines]
    own = [line for lines in stacks for line in as_far_as_the_module(lines[:_MOST_CALLERS])]
    apart = [line for line in own if (line.file, line.line) not in passed]
    wrongly = list(_given_wrong_numbers(guilty.lines, part))
    if not any(seen[maker].lacks and seen[maker].part == guilty.part for maker in guilty.makers):
        yield from wrongly
    yield from _lines_of_mask(seen, number)
    yield from (line for line in apart if not _is_entry(line, guilty))
    yield from _upstream(seen, number, passed, part.end)
    calling = guilty.lines[len(as_far_as_the_module(guilty.lines)) :][:1]
    yield from (*wrongly, *apart, *(line for line in calling if (line.file, line.line) not in passed))
    yield from (*(line for line in own if line.is_of_module), *own)


def _given_wrong_numbers(lines: Sequence[OwnLine], part: Part) -> Iterator[OwnLine]:
    """The line that calls the outermost of the functions, from the innermost on, that are given wrong numbers."""
    index = 0
    while index < len(lines) and lines[index].numbers and not _are_right(lines[index].numbers, part):
        index += 1
    if 0 < index < len(lines):
        yield lines[index]


def _lines_of_mask(seen: Sequence[_Seen], number: int) -> Iterator[OwnLine]:
    """Of what hides some of its scores by a mask that depends on positions alone, the line that compares these."""
    waiting, compared = _masks(seen, number), set[int]()
    while waiting:
        maker = waiting.pop()
        if seen[maker].part == seen[number].part and seen[maker].name in _COMPARING:
            compared.update(() if seen[maker].is_open else (maker,))
        elif seen[maker].part == seen[number].part:
            waiting += [each for each in seen[maker].makers if not seen[each].is_fed]
    yield from seen[max(compared)].lines[:1] if compared else ()


def _masks(seen: Sequence[_Seen], number: int) -> list[int]:
    """What depends on positions alone and is read by an operation; by a softmax, what its scores were hidden by.

    That only where the whole pass has no such mask.
    """
    name, makers = seen[number].name, seen[number].makers
    if name.startswith(_HIDING) or name == "add" or "attention" in name:
        return [maker for maker in makers if not seen[maker].is_fed]
    hidden = [maker for maker in makers if seen[maker].name in ("add", *_HIDING)] if "softmax" in name else []
    masks = [each for maker in hidden for each in seen[maker].makers if not seen[each].is_fed]
    return [each for each in masks if seen[each].lacks]


def _is_entry(line: OwnLine, seen: _Seen) -> bool:
    """Whether a line is of the function through which the module is entered: it may only pass on."""
    entry = seen.lines[-1]
    return line.file == entry.file and entry.first <= line.line <= entry.last


def _are_right(numbers: Sequence[int], part: Part) -> bool:
    """Whether the numbers that a function is given are none, or hold the part's start, or its width and its end."""
    others, width = list(numbers), part.end - part.start
    if width not in others:
        return not numbers or part.start in others
    others.remove(width)
    return part.start in others or part.end in others or (not others and part.start == width)


def _upstream(seen: Sequence[_Seen], number: int, passed: set[tuple[str, int]], end: int) -> Iterator[OwnLine]:
    """The line of the nearest operation of its part that it reads from and that the whole pass does not run."""
    waiting, known = [number], set[int]()
    while waiting and len(known) < _MOST_UPSTREAM:
        latest = max(waiting)
        waiting.remove(latest)
        known.add(latest)
        line = next(iter(seen[latest].lines), None)
        if line is not None and (line.file, line.line) not in passed and not _is_entry(line, seen[latest]):
            yield from () if end in seen[latest].sizes and seen[latest].is_fed else (line,)
            return
        makers = (maker for maker in seen[latest].makers if seen[maker].part == seen[number].part)
        waiting += [maker for maker in makers if maker not in known and maker not in waiting]
