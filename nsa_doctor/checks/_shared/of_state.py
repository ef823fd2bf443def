"""Which fields make two ways of filling a state decode differently, and the line of the subject that wrote them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.cache_ways import Way, Ways
from nsa_doctor.probes.attention.decode_origin import Origin
from nsa_doctor.probes.hooks.field_writers import OwnLine, Write, as_far_as_the_module
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.numerics.field_difference import FieldDifference
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_LENGTHS, _FURTHER, _MOST_TOKENS = (37, 32, 17, 65), 43, 150
_MOST_LENGTHS = {"smoke": 1, "quick": 2, "full": 4}
_MOST_TRIED, _STEPS_BEYOND = 16, 6
_FEW_LINES = 2  # of more the outermost is where a way begins, which is another on each


@dataclass(frozen=True)
class Blamed:
    """Fields that functions of one name left so that the wrong way decodes differently, each with its line.

    `is_all` where what follows is right with these fields replaced.
    """

    fields: tuple[tuple[FieldDifference, Place], ...]
    is_all: bool

    @property
    def place(self) -> Place:
        """The line of the first."""
        return self.fields[0][1]


def blamed(ways: Ways, first: Way, second: Way, apart: Sequence[FieldDifference]) -> Iterator[Blamed]:
    """The fields that matter, those of one function together.

    Where outputs differ already, only what the guilty part of the module wrote may be at fault: other fields follow.
    If it is not, all is put down to that part.
    """
    wrong, right = ways.wrong_and_right(first, second)
    known = {each.path for each in apart}
    beside = [FieldDifference(path, held, held) for path, held in wrong.fields.items() if path not in known]
    writes, others = (ways.writers(way, [*apart, *beside]) for way in (wrong, right))
    origin = ways.guilty(wrong)
    guilty = None if origin is None else origin.place
    apart = [each for each in apart if each.path in right.fields]
    of_guilty: Sequence[FieldDifference] = ()
    if guilty is not None and guilty.module:
        near = [each for each in apart if _is_number(wrong, each) or _is_inside(writes.get(each.path), guilty.module)]
        of_guilty = _without_which_it_departs(ways, wrong, right, near, apart)
    matter, is_all = (of_guilty, True) if of_guilty else _that_matter(ways, wrong, right, apart)
    is_before = guilty is not None and bool(guilty.module) and not of_guilty
    by_function: dict[tuple[str, str], list[tuple[FieldDifference, Place]]] = {}
    for each in matter:
        is_by_right = each.unfilled_by == ("first" if right is first else "second")
        place = _place(ways, each, *((others, writes) if is_by_right else (writes, others)))
        is_unplaced = (
            _is_number(wrong, each) and guilty is not None and bool(guilty.file) and not _is_assigned(each, writes)
        )
        if origin is not None and (is_before or is_unplaced or _is_made_alike(each, writes, others, origin)):
            place = _turned_at(each, writes, place) if each.is_rotation else origin.place
        by_function.setdefault((place.file, place.function), []).append((each, place))
    for fields in by_function.values():
        yield Blamed(tuple(fields), is_all and len(by_function) == 1)


def lengths_to_leave(subject: Subject) -> list[tuple[int, int]]:
    """How many tokens leave the state, and how many are decoded from it: past the edges of windows and blocks."""
    most = min(subject.max_length, 600 if subject.profile == "full" else _MOST_TOKENS)
    wanted: tuple[int, ...]
    try:
        rules = rules_of(subject)
        further = min(max(rules.l, rules.l_sel) + rules.d + 1, most // 2)
        wanted = (rules.w + 1, rules.l_sel, rules.l + rules.d, rules.l_sel + 1, 2 * rules.l_sel - 1)
    except NotApplicableError:
        wanted, further = _LENGTHS, min(_FURTHER, most // 2)
    fitting = [length for length in dict.fromkeys(wanted) if 1 < length <= most - further] or [max(2, most - further)]
    return [(length, further) for length in fitting[: _MOST_LENGTHS[subject.profile]]]


def shows_in_own_dtype(sp: BuiltModule, way: Way, other: Way) -> bool:
    """Whether it departs in the subject's own dtype too: a state may be kept in that."""
    if sp.dtype == sp.subject.dtype:
        return True
    own = built(sp.subject)
    own.module.load_state_dict(sp.module.state_dict())
    x = own.input(way.tokens[-1] + 1)
    ways = Ways(own, x, baseline(own, x))
    return ways.depart(ways.way(way.name, way.sizes), ways.way(other.name, other.sizes)) is not None


_Writes = Mapping[str, tuple[Write, Write]]


def _is_number(way: Way, apart: FieldDifference) -> bool:
    return apart.path in way.fields and not isinstance(way.fields[apart.path].value, Tensor)


def _is_inside(writes: tuple[Write, Write] | None, guilty: str) -> bool:
    return any(f"{write.place.module}.".startswith(f"{guilty}.") for write in writes or ())


def _that_matter(
    ways: Ways, wrong: Way, right: Way, apart: Sequence[FieldDifference]
) -> tuple[Sequence[FieldDifference], bool]:
    """The fewest fields that have to be replaced, and whether what follows is then as on the right way."""
    apart = apart[:_MOST_TRIED]
    departs = _departing(ways, wrong, right)
    if departs is None:
        return [], True
    alone = next((each for each in apart if not departs([each], right)), None)
    if alone is not None:
        return [alone], True
    if departs(apart, right):
        return [each for each in apart if departs([each], wrong)] or apart, False
    return [each for each in apart if departs(_but(apart, each), right)] or apart, True


def _without_which_it_departs(
    ways: Ways, wrong: Way, right: Way, near: Sequence[FieldDifference], apart: Sequence[FieldDifference]
) -> Sequence[FieldDifference]:
    """Those of the near ones that have to be replaced beside all others; none where that does not help."""
    departs = _departing(ways, wrong, right)
    rest = [each for each in apart if each not in near]
    if not near or departs is None or departs(apart, right) or not departs(rest, right):
        return ()
    return [each for each in near if departs(_but(apart, each), right)] or near


def _but(fields: Sequence[FieldDifference], one: FieldDifference) -> list[FieldDifference]:
    return [each for each in fields if each is not one]


def _departing(ways: Ways, wrong: Way, right: Way) -> Callable[[Sequence[FieldDifference], Way], bool] | None:
    """Whether the wrong way, with some fields as the right one left them, departs from another way soon."""
    departure = ways.depart(wrong, right)
    if departure is None:
        return None
    until = min(wrong.at + departure.first_token + _STEPS_BEYOND, ways.x.shape[1])

    def departs(replaced: Sequence[FieldDifference], other: Way) -> bool:
        edited = ways.with_fields(wrong, right, replaced, until)
        return ways.depart(wrong if edited is None else edited, other) is not None

    return departs


def _place(ways: Ways, apart: FieldDifference, writes: _Writes, others: _Writes) -> Place:
    """The line that computed or wrote the field on the wrong way, the first outwards that the other does not pass.

    Of a field that is left unfilled, and of a number, the line that assigns to it, or that fills what stands beside it.
    """
    own, other = writes.get(apart.path), others.get(apart.path)
    is_unfilled = own is None or (own[0].only_allocates and other is not None and not other[0].only_allocates)
    near = _beside(apart, writes) if is_unfilled else None
    if (own := near or own) is None:
        return definition_place(ways.sp.module)
    made, written = own
    place = made.place if made.place.module_class else written.place
    place = place if place.module_class else replace(place, module_class=type(ways.sp.module).__name__)
    line = _assignment(apart, written) if near else None
    line = line or _line(apart, own, None if near else other)
    return place if line is None else replace(place, file=line.file, line=line.line, function=line.function)


def _turned_at(apart: FieldDifference, writes: _Writes, place: Place) -> Place:
    """The line of the module that has a field turned, by positions that both ways count alike."""
    made = writes[apart.path][0] if apart.path in writes else None
    lines = as_far_as_the_module(made.lines) if made is not None else ()
    return replace(place, file=lines[-1].file, line=lines[-1].line, function=lines[-1].function) if lines else place


def _is_assigned(apart: FieldDifference, writes: _Writes) -> bool:
    """Whether a line that assigns to the field is seen, in a function that wrote beside it."""
    near = _beside(apart, writes)
    return near is not None and _assignment(apart, near[1]) is not None


def _is_made_alike(apart: FieldDifference, writes: _Writes, others: _Writes, origin: Origin) -> bool:
    """Whether both ways compute the field on the same lines: what they are given differs, not who writes it.

    Of wrong positions, on the same lines of its module.
    """
    own, other = writes.get(apart.path), others.get(apart.path)
    if own is None or other is None or apart.is_shifted or apart.unfilled_by:
        return False
    passed = {(line.file, line.line) for line in other[0].lines}
    lines = as_far_as_the_module(own[0].lines) if origin.is_of_positions else own[0].lines
    return all((line.file, line.line) in passed for line in lines)


def _line(apart: FieldDifference, own: tuple[Write, Write], other: tuple[Write, Write] | None) -> OwnLine | None:
    made, written = own
    is_misplaced = apart.is_shifted or bool(apart.unfilled_by)
    passed = {(line.file, line.line) for each in other or () for line in each.lines}
    not_passed = [
        line
        for write in ((written, made) if is_misplaced else (made, written))
        for line in (write.lines[:-1] if len(write.lines) > _FEW_LINES else write.lines)
        if (line.file, line.line) not in passed
    ]
    lines = (written if is_misplaced else made).lines
    if is_misplaced and not not_passed:
        return next((line for line in lines if not line.numbers), None)  # where the place is worked out
    by_module = [line for line in not_passed if line.is_of_module] if apart.is_rotation else []
    return next(iter((*by_module, *not_passed, *(line for line in lines if line.is_of_module), *lines)), None)


def _assignment(apart: FieldDifference, written: Write) -> OwnLine | None:
    """The line, in a function that wrote beside it, that assigns to the field by its name."""
    name = re.findall(r"[A-Za-z_]\w*", apart.path)[-1]
    return next((found for line in written.lines if (found := line.assigning(name)) is not None), None)


def _beside(apart: FieldDifference, writes: _Writes) -> tuple[Write, Write] | None:
    """Who filled the field that is nearest to it in the structure; None where that function left this one's zeros."""
    near = [path for path, write in writes.items() if path != apart.path and not write[0].only_allocates]
    best = max(near, key=lambda path: _num_common(path, apart.path), default=None)
    if best is None:
        return None
    own, functions = writes.get(apart.path), {(line.file, line.first) for line in writes[best][1].lines}
    is_by_it = own is not None and any((line.file, line.first) in functions for line in own[0].lines[:1])
    return None if is_by_it else writes[best]


def _num_common(one: str, other: str) -> int:
    """How many characters two paths begin with together."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
