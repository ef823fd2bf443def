"""The choice of blocks against plain lists: well formed whatever the scores, best by score where these are in order."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.measurement import Place
from nsa_doctor.fuzz import plain_rules as rules
from nsa_doctor.fuzz.cases import Choice
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.properties.ranges import place_of
from nsa_doctor.fuzz.properties.tensors import Watch, laid_out, listed
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.subject.contract import Subject


def examine(case: Choice, subject: Subject) -> Iterator[Failure]:
    """What does not hold for this case."""
    chooser, place = _chooser(case, subject)
    values = torch.tensor(_numbers(case.importance), dtype=torch.float64).to(getattr(torch, case.dtype))
    importance = laid_out(values.to(subject.device), case.layout)
    watch = Watch().over(importance=importance)
    answer = ask("forward", lambda: chooser(importance, case.first_query), None)
    if watch.written():
        yield Failure(
            violation=Violation.ARGUMENT_WRITTEN, message="the choice writes into the importance", where=place
        )
    is_ranges = answer.ndim == 5 and answer.shape[-1] == 2
    is_shaped = answer.shape[:3] == importance.shape[:3] and (answer.ndim == 4 or is_ranges)
    if not is_shaped or answer.is_floating_point():
        message = f"the choice is {str(answer.dtype)[6:]} {list(answer.shape)}, expected integers [B, T, G, n]"
        yield Failure(violation=Violation.WRONG_SHAPE, message=message, where=place)
        return
    slots = _to_slots(answer, case.l_sel, is_ranges)
    yield from _alone(case, slots, importance, chooser, place, is_ranges)
    yield from _each(case, slots, importance, place)


def _chooser(case: Choice, subject: Subject) -> tuple[Callable[[Tensor, int], Tensor], Place]:
    if case.impl == "subject":
        assert subject.select is not None
        return subject.select, place_of(subject.select)
    module = importlib.import_module(f"nsa.ops.select.{'reference' if case.impl == 'reference' else 'vectorized'}")
    geometry = Geometry(l=1, d=1, l_sel=case.l_sel, n_sel=case.n_sel, w=1)
    return lambda importance, first: module.choose_slots(importance, geometry, first), place_of(module.choose_slots)


def _each(case: Choice, slots: Any, importance: Tensor, place: Place) -> Iterator[Failure]:
    """Every query's choice on its own; the first of each kind of complaint."""
    scores, reported = listed(importance), set()
    for row, queries in enumerate(slots):
        for index, groups in enumerate(queries):
            for group, held in enumerate(groups):
                position = case.first_query + index
                given = held if _is_ours(case) else [*sorted(s for s in held if s != -1), *[-1] * held.count(-1)]
                complaint = rules.choice_complaint(given, position, case.l_sel, case.n_sel)
                complaint = complaint or _worse(case, held, scores[row][index][group], position)
                if complaint is not None and complaint[0] not in reported:
                    reported.add(complaint[0])
                    message = f"{complaint[1]} at row {row}, token {position}, group {group}: {held}"
                    yield Failure(violation=complaint[0], message=message, where=place)


def _worse(case: Choice, held: list[int], scores: list[float], position: int) -> tuple[Violation, str] | None:
    """Scores in order decide; ties go to the lower index in `nsa`, and where they may in a foreign choice."""
    if not rules.is_ordered(scores, position, case.l_sel):
        return None
    best = rules.chosen(scores, position, case.l_sel, case.n_sel)
    mine = sorted(slot for slot in held if slot != -1)
    if mine == best:
        return None
    if sorted(scores[block] for block in mine) != sorted(scores[block] for block in best):
        return Violation.NOT_BEST_BY_SCORE, f"{mine} is chosen where {best} score higher"
    return (Violation.TIE_TO_HIGHER_INDEX, f"{mine} is chosen where {best} tie") if _is_ours(case) else None


def _alone(
    case: Choice,
    slots: Any,
    importance: Tensor,
    chooser: Callable[[Tensor, int], Tensor],
    place: Place,
    is_ranges: bool,
) -> Iterator[Failure]:
    """The last row, query and group chosen for alone, from a contiguous copy, are chosen for alike."""

    def again(row: slice, query: slice, group: slice) -> Any:
        given = importance[row, query, group].clone(memory_format=torch.contiguous_format)
        first = case.first_query + (query.start or 0)
        return _to_slots(ask("forward", lambda: chooser(given, first), None), case.l_sel, is_ranges)

    rows, queries, groups = importance.shape[:3]
    every, least = slice(None), -1
    if again(every, every, every) != slots:
        message = f"{case.layout} and contiguous importance are chosen from differently"
        yield Failure(violation=Violation.DEPENDS_ON_STRIDES, message=message, where=place)
    if again(slice(rows - 1, rows), every, every) != slots[least:]:
        yield _dependent("row", "rows", place)
    if again(every, every, slice(groups - 1, groups)) != [[q[least:] for q in row] for row in slots]:
        yield _dependent("group", "groups", place)
    if again(every, slice(queries - 1, queries), every) != [row[least:] for row in slots]:
        yield _dependent("query", "queries", place)


def _dependent(what: str, others: str, place: Place) -> Failure:
    return Failure(
        violation=Violation.CHOICE_DEPENDS_ON_OTHERS,
        name=f"depends on other {others}",
        message=f"the last {what} alone is chosen for differently",
        where=place,
    )


def _is_ours(case: Choice) -> bool:
    """Whether one of `nsa`'s implementations is asked, whose slots ascend, not a seam."""
    return case.impl != "subject"


def _to_slots(answer: Tensor, l_sel: int, is_ranges: bool) -> Any:
    """Slots as nested lists; of ranges, the blocks they cover, once each, in their order."""
    if not is_ranges:
        return listed(answer)

    def blocks(ranges: list[list[int]]) -> list[int]:
        return [block for start, end in ranges if end > start for block in range(start // l_sel, -(-end // l_sel))]

    return [[[blocks(group) for group in query] for query in row] for row in listed(answer)]


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else float(values)
