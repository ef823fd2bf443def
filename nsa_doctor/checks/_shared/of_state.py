"""Which fields make two ways of filling a state decode differently, and the line of the subject that wrote them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.cache_ways import Way, Ways
from nsa_doctor.probes.hooks.field_writers import Write
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.numerics.compare import Departure
from nsa_doctor.probes.numerics.field_difference import FieldDifference

_MOST_TRIED = 24


@dataclass(frozen=True)
class Blamed:
    """Fields written on one line that make the wrong way decode differently; with these replaced it may be right."""

    fields: tuple[FieldDifference, ...]
    place: Place
    is_all: bool


def blamed(ways: Ways, wrong: Way, right: Way, apart: Sequence[FieldDifference]) -> Iterator[Blamed]:
    """The fields that matter, those of one line together.

    Where outputs differ already, what lies beyond the part of the module that is guilty follows, and is left out.
    """
    writes, guilty = ways.writers(wrong, apart), ways.guilty(wrong)
    if guilty:
        apart = [each for each in apart if each.path in writes and _is_inside(writes[each.path], guilty)]
    if not apart:
        return
    others = ways.writers(right, apart)
    matter, is_all = _that_matter(ways, wrong, right, [each for each in apart if each.path in right.fields])
    by_place: dict[Place, list[FieldDifference]] = {}
    for each in matter:
        by_place.setdefault(_place(ways, each, apart, writes, others), []).append(each)
    for place, fields in by_place.items():
        yield Blamed(tuple(fields), place, is_all and len(by_place) == 1)


_Writes = Mapping[str, tuple[Write, Write]]


def _is_inside(writes: tuple[Write, Write], guilty: str) -> bool:
    return any(f"{write.place.module}.".startswith(f"{guilty}.") for write in writes)


def _that_matter(
    ways: Ways, wrong: Way, right: Way, apart: Sequence[FieldDifference]
) -> tuple[Sequence[FieldDifference], bool]:
    """The fewest fields that have to be replaced, and whether what follows is then as on the right way."""
    apart = apart[:_MOST_TRIED]
    changed: list[FieldDifference] = []
    for each in apart:
        edited = ways.with_fields(wrong, right, [each])
        if edited is None:
            continue
        if ways.depart(edited, right) is None:
            return [each], True
        if ways.depart(edited, wrong) is not None:
            changed.append(each)
    if _departs(ways, wrong, right, apart) is not None:
        return changed or apart, False
    needed = [each for each in apart if _departs(ways, wrong, right, [one for one in apart if one is not each])]
    return needed or changed or apart, True


def _departs(ways: Ways, wrong: Way, right: Way, apart: Sequence[FieldDifference]) -> Departure | None:
    edited = ways.with_fields(wrong, right, apart)
    return ways.depart(wrong if edited is None else edited, right)


def _place(
    ways: Ways, apart: FieldDifference, others_apart: Sequence[FieldDifference], writes: _Writes, others: _Writes
) -> Place:
    """The line that computed or wrote the field on the wrong way, the first outwards that the right way does not pass.

    Of a field that is left unfilled, the line that fills what stands beside it.
    """
    own, other = writes.get(apart.path), others.get(apart.path)
    if (own is None or own[0].only_allocates) and other is not None and not other[0].only_allocates:
        own = _beside(apart, others_apart, writes) or own
    if own is None:
        return definition_place(ways.sp.module)
    made, written = own
    place = made.place if made.place.module_class else written.place
    place = place if place.module_class else replace(place, module_class=type(ways.sp.module).__name__)
    passed = [set() if other is None else {(line.file, line.line) for line in each.lines} for each in other or own]
    pairs = list(zip((made, written), passed, strict=True))
    not_passed = [
        line
        for write, known in (reversed(pairs) if apart.is_shifted else pairs)
        for line in write.lines
        if (line.file, line.line) not in known
    ]
    of_modules = [line for line in made.lines if line.is_of_module]
    line = next(iter((*not_passed, *of_modules, *made.lines)), None)
    return place if line is None else replace(place, file=line.file, line=line.line, function=line.function)


def _beside(apart: FieldDifference, others: Sequence[FieldDifference], writes: _Writes) -> tuple[Write, Write] | None:
    """Who filled another field of the same holder."""
    holder = next((field.parent for field in (apart.first, apart.other) if field is not None), "")
    near = [path for path, write in writes.items() if path != apart.path and not write[0].only_allocates]
    return next((writes[path] for path in near if path.startswith(holder)), None)
