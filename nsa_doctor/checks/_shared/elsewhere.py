"""What calls give in another process, and at other times, held against what they give here."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa_doctor.core.endings import end_of
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Place
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.gradients.gradient_of_call import departure_from, slopes_of
from nsa_doctor.probes.hooks.hash_users import looks_at_hashes, own_code_that_runs
from nsa_doctor.probes.hooks.line_recorder import last_line, record_lines
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Recording
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.built_module import randomise
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.fork import CopyDiedError, at_another_time, in_fork, with_another_number, with_number
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.second_interpreter import (
    FIRST_OF_ALL,
    EndedElsewhereError,
    SecondInterpreter,
    give_state,
    state_of,
)
from nsa_doctor.probes.numerics.divergence import divergence_of, recording_of
from nsa_doctor.probes.numerics.earlier_calls import Judge, Symptom, differs_by
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins
from nsa_doctor.subject.contract import Subject

OF_GRADIENT = ("gradient", "no gradient")
_SECONDS = 60
_NO_COPY = {"symptom": "no copy"}  # as where autograd had threads
_HASH_SEEDS, _OTHER_WEIGHTS = (1, 2, 3, 4, 5), 31337
_FORKS = 3
_SECONDS_OF_SEEDS = 20.0  # after which no further interpreter is started
_TIMES_SLOWER = 40.0  # a machine whose other cores are busy, three modules each once more in half precision, imports
_UNASKED = 391
_NUMBERS = range(1, 9)  # how many numbers further: one of them leaves any remainder by a number up to 8
# Hours apart and of every remainder by small numbers, so that whatever is made of a time changes in some of them.
_AHEAD = tuple(3607.37 * number for number in range(1, 17))


@dataclass(frozen=True)
class Known:
    """What is known of calls made here, to find where others depart from them: operations, and slopes of gradients."""

    recordings: Mapping[Call, Recording] = field(default_factory=dict)
    slopes: Mapping[Call, dict[str, Any]] = field(default_factory=dict)


def known_of(history: CallHistory, call: Call, symptom: str) -> Known:
    """What finds the place of a symptom in that call."""
    if symptom in OF_GRADIENT:
        return Known(slopes={call: slopes_of(history, call, symptom)})
    history.enter(call.mode)
    return Known(recordings={call: recording_of(history.built, lambda: history.output(call))})


def in_forks(history: CallHistory, expected: Mapping[Call, Outcome], judge: Judge, known: Known) -> dict[str, Any]:
    """What differs in copies of this process, one of them at other times, from the outcomes expected; {} for nothing.

    Operations are compared with those that are known.
    """
    for number in range(_FORKS):
        seen = partial(_seen, history, expected, judge, known, is_copy=True, is_first=not number)
        try:
            answer = in_fork(seen, _SECONDS)
        except CopyDiedError as death:
            return _death_in_a_copy(history, list(expected), seen, death)
        if answer is None:
            raise NotComparableError("a copy of the process gave no answer")
        if answer == _NO_COPY:
            return in_this_process(history, expected, judge, known)
        if answer:
            return answer
    return {}


def in_this_process(
    history: CallHistory, expected: Mapping[Call, Outcome], judge: Judge, known: Known
) -> dict[str, Any]:
    """What differs with other numbers of this process and at other times, where it cannot be copied."""
    return _seen(history, expected, judge, known, is_copy=False, is_first=True)


def in_an_interpreter(subject: Subject, dtype: str, calls: Sequence[Call], judge: Judge) -> dict[str, Any]:
    """What differs in an interpreter started for it from what is seen here; {} for nothing.

    Where functions of the subject look at hashes, several are started, as far as there is time: half of all seeds may
    give the same.
    """
    if not subject.is_slow:  # at a length that nobody asked for before: what is kept by length begins there
        calls = [*calls, replace(calls[0], length=min(_UNASKED, subject.max_length))]
    with own_code_that_runs(subject.packages) as functions:
        here, again = (CallHistory(subject, dtype=dtype) for _ in range(2))
        start = {name: value.clone() for name, value in state_of(here.built.module).items()}
        own, judge_of_own = _of_own_dtype(subject, start), differs_by(torch.finfo(getattr(torch, subject.dtype)).eps)
        expected: list[_Expected] = []
        for call in calls:
            first, other, of_own = here.step(call), again.step(call), own.step(call)
            if first is None or other is None or judge(first, other) is not None:
                break  # it is built otherwise each time: nothing can be compared
            expected.append(_Expected(call, first, of_own))
    seeds = _HASH_SEEDS if any(map(looks_at_hashes, functions)) else _HASH_SEEDS[:1]
    end = time.perf_counter() + _SECONDS_OF_SEEDS
    for seed in seeds:
        if seed != seeds[0] and time.perf_counter() > end:
            break
        second = SecondInterpreter(here, start, seed, _SECONDS)
        if found := _differing(second, here, calls, expected, judge, judge_of_own):
            return found
    return {}


class _Expected(NamedTuple):
    """A call and what it gives here, and in the subject's own dtype."""

    call: Call
    outcome: Outcome
    of_own: Outcome | None


def _differing(
    second: SecondInterpreter,
    here: CallHistory,
    calls: Sequence[Call],
    expected: Sequence[_Expected],
    judge: Judge,
    judge_of_own: Judge,
) -> dict[str, Any]:
    """What differs there; all calls must return, and those that can be compared must give what is expected."""
    subject = here.built.subject
    try:
        elsewhere = second.outcomes(calls)
    except EndedElsewhereError as ended:
        if ended.is_hang and _seconds_of(here, calls) * _TIMES_SLOWER > _SECONDS:
            raise
        return _ended(calls[0], ended.sentence, ended.place, here, "in another interpreter")
    for index, (call, first, of_own) in enumerate(expected):
        for which, outcomes in elsewhere:
            is_own = which == FIRST_OF_ALL
            wanted, judged = (of_own, judge_of_own) if is_own else (first, judge)
            if is_own and _keeps_earlier_weights(subject, second.state, calls[: index + 1], of_own, judged):
                continue
            if wanted is not None and (symptom := judged(wanted, outcomes[index])) is not None:
                fresh = _of_own_dtype(subject, second.state) if is_own else CallHistory(subject, dtype=here.built.dtype)
                place, operation = _departure(second, fresh, calls[: index + 1], which, symptom)
                facts = {"words": symptom.words, "symptom": symptom.kind, "call": asdict(call), "operation": operation}
                place = place if place.file else definition_place(first.module)
                return {**facts, "place": asdict(place), "way": f"in another interpreter{which}"}
    return {}


def _of_own_dtype(subject: Subject, state: Mapping[str, Tensor]) -> CallHistory:
    """A module of the subject in its own dtype, with those values rounded to it."""
    own = CallHistory(subject)
    give_state(own.built.module, state)
    return own


def _keeps_earlier_weights(
    subject: Subject, state: Mapping[str, Tensor], calls: Sequence[Call], expected: Outcome | None, judge: Judge
) -> bool:
    """Whether a module that was called before it got these weights gives another outcome of the last call here too."""
    used = CallHistory(subject)
    randomise(used.built.module, subject.seed + _OTHER_WEIGHTS)
    used.make(calls)
    give_state(used.built.module, state)
    outcome = used.step(calls[-1])
    return outcome is not None and judge(expected, outcome) is not None


def _departure(
    second: SecondInterpreter, fresh: CallHistory, calls: Sequence[Call], which: str, symptom: Symptom
) -> tuple[Place, str]:
    """Where the last of these calls departs there from what it does here; nowhere where that cannot be seen."""
    fresh.make(calls[:-1])
    try:
        found = second.departure(calls, which, slopes_of(fresh, calls[-1], symptom.kind))
    except NotComparableError:
        found = {}
    return (Place(**found["place"]), found["operation"]) if found else (Place(), "")


def _seconds_of(history: CallHistory, calls: Sequence[Call]) -> float:
    """How long the calls take here."""
    begin = time.perf_counter()
    history.make(calls)
    return time.perf_counter() - begin


def _death_in_a_copy(
    history: CallHistory, calls: Sequence[Call], seen: Callable[[], dict[str, Any]], death: CopyDiedError
) -> dict[str, Any]:
    """What is said of a copy that the calls ended: at which line, unless they end every copy they are made in."""
    number = os.getpid()

    def as_here() -> dict[str, Any]:
        with with_number(number):
            history.make(calls)
        return {}

    with TemporaryDirectory() as folder:
        file = Path(folder) / "lines"

        def followed() -> dict[str, Any]:
            record_lines(file, history.built.subject.packages)(history.built.module)
            return seen()

        try:
            in_fork(as_here, _SECONDS)
            in_fork(followed, _SECONDS)
        except CopyDiedError:
            place = last_line(file) if file.exists() else None
            if place is not None:
                return _ended(calls[0], end_of(death.status), place, history, "in another process")
    raise NotComparableError(str(death))


def _ended(call: Call, ending: str, place: Place, history: CallHistory, way: str) -> dict[str, Any]:
    """What is said of a process that ended, or did not, at this line."""
    place = place if place.file else definition_place(history.built.module)
    facts = {"words": f"the process {ending}", "symptom": "ends", "operation": "", "call": asdict(call)}
    return {**facts, "place": asdict(place), "way": way}


def _seen(
    history: CallHistory,
    expected: Mapping[Call, Outcome],
    judge: Judge,
    known: Known,
    *,
    is_copy: bool,
    is_first: bool,
) -> dict[str, Any]:
    """What differs in this process from the outcomes expected: a sentence, the place, the operation; {} for nothing.

    All calls are made as they are in a copy of the process and, where it `is_first`, with other numbers of the process;
    the first call is made at other times then, and in inference mode.
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
            if is_copy and outcome is not None and error_kind(outcome.raised) is TorchError.FORKED:
                return _NO_COPY
            symptom = None if outcome is None else judge(expected[call], outcome)
            if outcome is not None and symptom is not None:
                place, operation = _origin(history, outcome, symptom, known)
                facts = {"words": symptom.words, "symptom": symptom.kind, "operation": operation}
                return {**facts, "call": asdict(call), "place": asdict(place), "way": way}
    return {}


def _origin(history: CallHistory, outcome: Outcome, symptom: Symptom, known: Known) -> tuple[Place, str]:
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
    if symptom.kind in OF_GRADIENT:
        departed = departure_from(history, outcome.call, known.slopes.get(outcome.call, {}))
        return (Place(**departed["place"]), departed["operation"]) if departed else (whole, "")
    recording = known.recordings.get(outcome.call)
    if symptom.kind == "output" and recording is not None:
        result = recording_of(history.built, lambda: history.output(outcome.call))
        divergence = divergence_of(history.built, recording, result, {})
        return divergence.place, divergence.operation
    return whole, ""
