"""What calls give in another process, and at other times, held against what they give here."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Place
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Recording
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.fork import at_another_time, in_fork, with_another_number
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.second_interpreter import outcomes_elsewhere
from nsa_doctor.probes.numerics.divergence import divergence_of, recording_of
from nsa_doctor.probes.numerics.earlier_calls import Judge, Symptom
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins
from nsa_doctor.subject.contract import Subject

_SECONDS = 60
_HASH_SEED = 1
_FORKS = 3
_UNASKED = 391
_NUMBERS = range(1, 9)  # how many numbers further: one of them leaves any remainder by a number up to 8
# Hours apart and of every remainder by small numbers, so that whatever is made of a time changes in some of them.
_AHEAD = tuple(3607.37 * number for number in range(1, 17))


def in_forks(
    history: CallHistory, expected: Mapping[Call, Outcome], judge: Judge, recording: Recording | None
) -> dict[str, Any]:
    """What differs in copies of this process, one of them at other times, from the outcomes expected; {} for nothing.

    With a recording of the first call, operations are compared.
    """
    for number in range(_FORKS):
        seen = partial(_seen, history, expected, judge, recording, is_copy=True, is_first=not number)
        answer = in_fork(seen, _SECONDS)
        if answer is None:
            raise NotComparableError("a copy of the process gave no answer")
        if answer:
            return answer
    return {}


def in_this_process(history: CallHistory, expected: Mapping[Call, Outcome], judge: Judge) -> dict[str, Any]:
    """What differs with other numbers of this process and at other times, where it cannot be copied."""
    return _seen(history, expected, judge, None, is_copy=False, is_first=True)


def in_an_interpreter(subject: Subject, dtype: str, calls: Sequence[Call], judge: Judge) -> dict[str, Any]:
    """What differs in an interpreter started for it from what is seen here; {} for nothing."""
    if not subject.is_slow:  # at a length that nobody asked for before: what is kept by length begins there
        calls = [*calls, replace(calls[0], length=min(_UNASKED, subject.max_length))]
    here, here_again = (CallHistory(subject, dtype=dtype) for _ in range(2))
    elsewhere = outcomes_elsewhere(here, calls, _HASH_SEED, _SECONDS)
    for index, call in enumerate(calls):
        first, second = here.step(call), here_again.step(call)
        if first is None or second is None or judge(first, second) is not None:
            return {}  # it is built otherwise each time: nothing can be compared
        for which, outcomes in elsewhere:
            if (symptom := judge(first, outcomes[index])) is not None:
                way = f"in another interpreter{which}"
                facts = {"words": symptom.words, "symptom": symptom.kind, "call": asdict(call), "operation": ""}
                return {**facts, "place": asdict(definition_place(first.module)), "way": way}
    return {}


def _seen(
    history: CallHistory,
    expected: Mapping[Call, Outcome],
    judge: Judge,
    recording: Recording | None,
    *,
    is_copy: bool,
    is_first: bool,
) -> dict[str, Any]:
    """What differs in this process from the outcomes expected: a sentence, the place, the operation; {} for nothing.

    All calls are made as they are in a copy of the process and, where it `is_first`, with other numbers of the process;
    the first call is made at other times then, and in inference mode. `recording` is of it.
    """
    first = next(iter(expected))
    numbers = [(call, further) for call in expected for further in _NUMBERS if is_first]
    ways: list[tuple[str, Call, AbstractContextManager[Any]]] = [
        *(("in another process", call, nullcontext()) for call in expected if is_copy),
        *(("in another process", call, with_another_number(further)) for call, further in numbers),
        *(("at another time", first, at_another_time(ahead)) for ahead in _AHEAD if is_first),
    ]
    if first.mode == "no_grad":  # last: what is kept of it may take part in no gradient
        ways.append(("under torch.inference_mode()", first, torch.inference_mode()))
    start = ModuleState(history.built.module)
    for way, call, manner in ways:
        start.restore()  # a training pass may move what later ones use
        with manner:
            outcome = history.step(call)
            symptom = None if outcome is None else judge(expected[call], outcome)
            if outcome is not None and symptom is not None:
                place, operation = _origin(history, outcome, symptom, recording if call == first else None)
                facts = {"words": symptom.words, "symptom": symptom.kind, "operation": operation}
                return {**facts, "call": asdict(call), "place": asdict(place), "way": way}
    return {}


def _origin(history: CallHistory, outcome: Outcome, symptom: Symptom, recording: Recording | None) -> tuple[Place, str]:
    whole, packages = definition_place(outcome.module), history.built.subject.packages
    if outcome.failure is not None:
        place = trouble_of(outcome.failure, packages).place
        return (place, "") if place.file else (whole, "")
    if symptom.kind == "not finite":

        def rerun(tracer: Tracer) -> Returned:
            again = history.step(outcome.call, tracer)
            if again is None or again.output is None:
                return []
            return [(OUTPUT, {OUTPUT: again.output}), (GRADIENTS, again.gradients)]

        found = origins(rerun, FrameFilter(packages))
        born = None if found is None else next(iter(found[1]), None)
        return (whole, "") if born is None else (born.place, born.operation)
    if symptom.kind == "output" and recording is not None:
        result = recording_of(history.built, lambda: history.output(outcome.call))
        divergence = divergence_of(history.built, recording, result, {})
        return divergence.place, divergence.operation
    return whole, ""
