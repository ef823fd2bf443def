"""Findings about a call that goes otherwise than an equal one before it: when, by which line, and how often."""

from collections.abc import Callable
from dataclasses import replace

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Mode, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.gradients.gradient_of_call import gradient_fault
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.call_history import Call, CallHistory
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.running_state import GoesOn
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.earlier_calls import Cause, Judge, Seen, SymptomKind, cause_of
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins
from nsa_doctor.probes.numerics.writes import first_written
from nsa_doctor.subject.contract import Subject

_MOST_LOOKS = 40  # until what happens by chance is seen under a tracer


class Replays:
    """Fresh modules of one subject on which the steps of a finding are made again."""

    def __init__(self, subject: Subject, dtype: str, mode: Mode, *, goes_on: GoesOn = "") -> None:
        self.subject, self._dtype, self._mode, self._goes_on = subject, dtype, mode, goes_on

    def fresh(self) -> CallHistory:
        """A module that nothing was done with."""
        return CallHistory(self.subject, dtype=self._dtype, mode=self._mode, goes_on=self._goes_on)

    def cause(self, seen: Seen, judge: Judge) -> Cause:
        """The fewest steps that show it again."""
        return cause_of(self.fresh, seen, judge)

    def finding(self, code: str, seen: Seen, cause: Cause) -> Finding:
        """What is seen, after what, and where it comes from."""
        place, operation = self._origin(seen, cause)
        last, num_calls = seen.outcome.call, sum(isinstance(step, Call) for step in seen.before)
        return Finding(
            code=code,
            message=f"{_sentence(seen, cause)}{f'; first in {operation}' if operation else ''}",
            where=place,
            evidence={
                "symptom": seen.symptom.kind,
                **({"kind": "raised"} if seen.symptom.kind == "raises" else {}),
                "cause": cause.kind,
                "length": last.length,
                "batch": last.batch,
                "mode": last.mode,
                "num_seen": cause.num_seen,
                "num_tried": cause.num_tried,
                "operation": operation,
                **error_evidence(seen.symptom.words),
            },
            control=f"{num_calls} calls before it go well" if num_calls else "",
            repro=command_for(self.subject, code),
        )

    def _origin(self, seen: Seen, cause: Cause) -> tuple[Place, str]:
        """The place in the subject, and the operation where one is known."""
        whole = definition_place(seen.outcome.module)
        looks = self._looks(seen.symptom.kind)
        if (failure := seen.outcome.failure) is not None:
            place = trouble_of(failure, self.subject.packages).place
            if place.file or failure.phase != "backward":
                return place, ""
            looks = [self._running]
        # What comes by chance may show to a worse look first: the best one is given all of its chances before that.
        for look in (look for look in looks for _ in range(_MOST_LOOKS if cause.kind == "chance" else 1)):
            try:
                found = look(cause)
            except (SubjectFailedError, NotComparableError):  # under a tracer it goes another way
                continue
            if found is not None and found[0].file:
                place = found[0]
                return replace(place, module_class=place.module_class or whole.module_class), found[1]
        return whole, ""

    def _looks(self, kind: SymptomKind) -> list[Callable[[Cause], tuple[Place, str] | None]]:
        """What may find the place, best first."""
        if kind == "not finite":
            return [self._birth]
        if kind == "input":
            return [self._write]
        is_of_gradient = kind in ("gradient", "no gradient")
        return [self._gradient_fault] if is_of_gradient else [self._divergence, self._gradient_fault]

    def _birth(self, cause: Cause) -> tuple[Place, str] | None:
        *before, last = cause.steps

        def rerun(tracer: Tracer) -> Returned:
            history = self.fresh()
            history.make(before)
            outcome = history.step(last, tracer)
            if outcome is None or outcome.output is None:
                return []
            return [(OUTPUT, {OUTPUT: outcome.output}), (GRADIENTS, outcome.gradients)]

        found = origins(rerun, FrameFilter(self.subject.packages))
        born = None if found is None else next(iter(found[1]), None)
        return None if born is None else (born.place, born.operation)

    def _write(self, cause: Cause) -> tuple[Place, str] | None:
        _, used, (_, last) = self._pair(cause)
        used.enter(last.mode)
        sp = used.built
        written = first_written(self.subject, sp.module, sp.call, {"the input": sp.input(last.length, last.batch)})
        return None if written is None else (written.by.place, written.by.operation)

    def _running(self, cause: Cause) -> tuple[Place, str] | None:
        """Where in the forward pass the node was made that ran last in a backward pass that raises."""
        history, tracer = self.fresh(), Tracer(Places(FrameFilter(self.subject.packages)))
        history.make(cause.steps[:-1])
        history.step(cause.steps[-1], tracer)
        place = tracer.running()
        return None if place is None else (place, "")

    def _divergence(self, cause: Cause) -> tuple[Place, str] | None:
        first, used, calls = self._pair(cause)
        found = first_divergence(used.built, lambda: first.output(calls[0]), lambda: used.output(calls[1]), {})
        if not found.operation:  # perhaps it is the first call alone that does more
            first, used, calls = self._pair(cause)
            found = first_divergence(first.built, lambda: used.output(calls[1]), lambda: first.output(calls[0]), {})
        return (found.place, found.operation) if found.operation else None

    def _gradient_fault(self, cause: Cause) -> tuple[Place, str] | None:
        first, used, calls = self._pair(cause)
        return gradient_fault(first, calls[0], used, calls[1])

    def _pair(self, cause: Cause) -> tuple[CallHistory, CallHistory, tuple[Call, Call]]:
        """A fresh module and one on which all steps but the last were made, and the call to compare on each."""
        used = self.fresh()
        used.make(cause.steps[:-1])
        last = cause.steps[-1]
        assert isinstance(last, Call)
        first = cause.steps[0] if cause.kind == "draw" else last
        assert isinstance(first, Call)
        return self.fresh(), used, (first, last)


def _sentence(seen: Seen, cause: Cause) -> str:
    """What is seen, when, and in which call."""
    if seen.symptom.kind in ("raises", "not finite"):
        return f"{seen.symptom.words}, {cause.words}: {seen.outcome.call}"
    return f"{seen.outcome.call} gives another result {cause.words}: {seen.symptom.words}"
