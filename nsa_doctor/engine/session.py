"""One subject under examination: what is known of it so far, and how the next check is answered."""

import linecache
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.check import Profile
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import needs_of
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Measurement, Point
from nsa_doctor.core.pace import Pace, left_out_of_all, seconds_of_all
from nsa_doctor.core.registry import Entry
from nsa_doctor.core.reproduce import CommandLine, beside
from nsa_doctor.core.seams import offers_no
from nsa_doctor.engine.conclusions import swept_codes, swept_results
from nsa_doctor.engine.describe import findings
from nsa_doctor.engine.measure_points import Examination, examine
from nsa_doctor.engine.remainder import Remainder, remainder
from nsa_doctor.engine.sweep_plan import sweep_points
from nsa_doctor.isolation.supervisor import Supervisor

_OF_A_DTYPE = re.compile(r"type|half|float|bf16|fp16|fp32|double|precision|implement|support", re.IGNORECASE)
_SHARE_OF_TRACING = 0.15  # of the seconds of an examination: each kind of run is traced first at one length
CHECK_SECONDS: Mapping[Profile, float] = {"smoke": 30.0, "quick": 90.0, "full": 600.0}


@dataclass
class Session:
    """Everything found out so far; it grows as checks are answered, and an interruption keeps what there is.

    `codes` are the checks to be answered: a sweep answers several of them at once. Several threads may answer checks of
    one session, each in its own supervisor. `observed` is what calls of checks showed that other checks answer.
    `is_paced`: it ends after the seconds of its profile, early where calls of the subject are slow, and leaves the rest
    out.
    """

    examination_request: ExaminationRequest
    codes: frozenset[str]
    is_paced: bool = True
    facts: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    examination: Examination = field(default_factory=Examination)
    notes: dict[str, None] = field(default_factory=dict)
    observed: list[Finding] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def has_failed(self) -> bool:
        """Whether anything is wrong already."""
        return bool(self._failed() or self.observed)

    @property
    def pace(self) -> Pace | None:
        """How much of a slow subject is looked at; None where there is time for all."""
        profile = self.examination_request.profile
        found_out = self.facts.get("found_out", {})
        return Pace.of(found_out.get("call_seconds", ()), profile) if self.is_paced else None

    @property
    def obstacles(self) -> tuple[Result, ...]:
        """What kept every call from an answer, asked for or not: nothing that was asked for could be looked at."""
        has_answer = any(measurement.trouble is None for measurement in self.examination.measurements)
        return () if has_answer else tuple(self._answered()[code] for code in self._failed() if code in swept_codes())

    def load(self, supervisor: Supervisor) -> None:
        """Load the subject and learn its facts; none are known when it cannot be examined, and the results say why.

        Raises UsageError and InternalError.
        """
        self.examination.measurements += supervisor.load()
        self.facts = supervisor.facts
        self.examination.whole_multiples_of = self.facts.get("found_out", {}).get("whole_multiples_of", 1)
        self._keep(notes=self.facts.get("notes", ()))
        if not self.facts:
            self._conclude_sweep([])
            self._leave_unanswered()

    def check(self, entry: Entry, supervisor: Supervisor) -> Result:
        """Run one check, unless the subject lacks what it needs or a failed one has taken its meaning.

        The result also holds what its calls showed that other checks answer.
        """
        code, name = entry.manual.code, entry.manual.name
        failed = [
            other
            for other, result in sorted(self._answered().items())
            if other != code and entry.blocked_by and other.startswith(entry.blocked_by) and _is_bad(result)
        ]
        missing = [seam for seam in entry.needs if seam not in self.facts["seams"]]
        if missing:
            reason = offers_no(missing)
            result = Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason, is_required=False)
        elif not self._seconds_for_a_check(entry):
            pace = self.pace
            reason = left_out_of_all(self.examination_request.profile) if pace is None else pace.left_out
            result = Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason)
        elif failed:
            result = self._check_what_is_left(entry, supervisor, failed)
        else:
            result = self._run(entry, supervisor)
            if _only_raised(result):
                result = self._beside_what_raises(entry, supervisor, result)
        own, observed = result.parted()
        self._keep([own], own.notes, observed)
        return result

    def _check_what_is_left(self, entry: Entry, supervisor: Supervisor, failed: Sequence[str]) -> Result:
        """Run a check where those that take its meaning have none to take: in other modes, at other lengths.

        What it finds there is another fault; that it finds nothing says nothing of the rest.
        """
        left = remainder(self.examination.measurements, self.facts) if set(failed) <= swept_codes() else None
        result = None if left is None else self._run(entry, supervisor, left)
        if result is not None and result.findings and not _only_raised(result):
            return result
        reason = f"means nothing while {failed[0]} fails"
        return Result(code=entry.manual.code, name=entry.manual.name, verdict=Verdict.SKIP, reason=reason)

    def _beside_what_raises(self, entry: Entry, supervisor: Supervisor, result: Result) -> Result:
        """The result, with what the check finds where its calls do not raise."""
        left = remainder(self.examination.measurements, self.facts) if set(self._failed()) & swept_codes() else None
        again = None if left is None else self._run(entry, supervisor, left)
        if again is None or again.verdict is not Verdict.FAIL or _only_raised(again):
            return result
        return replace(again, findings=(*again.findings, *result.findings))

    def _run(self, entry: Entry, supervisor: Supervisor, left: Remainder | None = None) -> Result:
        where, at_most = None if left is None else asdict(left), self._seconds_for_a_check(entry)
        code = entry.manual.code
        result = supervisor.check(code, self.examination_request.timeout, at_most=at_most, left=where)
        if left is None:
            return result
        failed = sorted(set(self._failed()) & swept_codes() - {code})
        found = (replace(each, repro=beside(failed, each.repro)) for each in result.findings)
        return replace(result, findings=tuple(found))

    def _seconds_for_a_check(self, entry: Entry) -> float:
        profile, spent = self.examination_request.profile, time.monotonic() - self._began
        most = CHECK_SECONDS[profile]
        if self.pace is not None:
            return min(most, self.pace.seconds_left(spent, is_telling=entry.telling))
        return most if not self.is_paced or spent < seconds_of_all(profile) else 0.0

    def sweep(self, supervisor: Supervisor) -> int:
        """Answer all checks that a sweep answers; the number of points it was planned to measure."""
        tried = {measurement.point.length for measurement in self.examination.measurements}
        every = sweep_points(self.examination_request.profile, self.facts, self.pace)
        planned = [point for point in every if point.length not in tried]
        seconds = _SHARE_OF_TRACING * seconds_of_all(self.examination_request.profile)
        examine(supervisor, self.examination, planned, tracing_seconds=seconds)
        self._conclude_sweep(planned)
        return len(planned)

    def _failed(self) -> list[str]:
        return sorted(code for code, result in self._answered().items() if _is_bad(result))

    def _leave_unanswered(self) -> None:
        """Skip what no sweep answers, for the reason that nothing could be loaded."""
        failed = self._failed()
        reason = f"means nothing while {failed[0]} fails" if failed else "the subject could not be loaded"
        for code in self.codes - self.results.keys():
            name = registry.manual(code).name
            self.results[code] = Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason)

    def _conclude_sweep(self, planned: Sequence[Point]) -> None:
        facts, measurements = self.facts, self.examination.measurements
        kept = [each for each in measurements if not _is_foreign_dtype(each, facts)]
        raised: dict[str, str] = {}
        for each in measurements:
            if each not in kept and each.trouble is not None:
                raised.setdefault(each.point.dtype, each.trouble.message)
        where = f"the subject does not run in it on {self.examination_request.device}"
        self._keep(notes=[f"not examined in {dtype}: {where} ({why})" for dtype, why in raised.items()])
        measurements[:] = kept
        done = [point for point in planned if any(each.point == point for each in kept)]
        found = findings(self.examination, self._command())
        entries = registry.entries()
        for result in swept_results(found, self.examination, done, lambda entry: entry.manual.code in self.codes):
            entry = entries[result.code]
            if result.verdict is Verdict.PASS and not _is_looked_at(entry, done, facts):
                was_planned = _is_looked_at(entry, planned, facts)
                reason = f"no such input is part of the profile {self.examination_request.profile}"
                if was_planned:
                    reason = f"it runs in {facts['dtype']} alone"
                elif self.pace is not None:
                    reason = self.pace.left_out
                result = replace(result, verdict=Verdict.SKIP, reason=reason, is_required=not was_planned)
            self._keep([result])
        self._keep(notes=[note for measurement in kept for note in measurement.notes])

    def _answered(self) -> dict[str, Result]:
        """The results so far: a copy, since other threads add to them."""
        with self._lock:
            return dict(self.results)

    def _keep(
        self, results: Iterable[Result] = (), notes: Iterable[str] = (), observed: Iterable[Finding] = ()
    ) -> None:
        with self._lock:
            self.observed += observed
            self.results.update({result.code: result for result in results})
            self.notes.update(dict.fromkeys(notes))

    def _command(self) -> CommandLine:
        return CommandLine.asked(self.examination_request, self.facts)


def _is_bad(result: Result) -> bool:
    return result.verdict in (Verdict.FAIL, Verdict.TIMEOUT)


def _only_raised(result: Result) -> bool:
    """Whether all that it found is calls that raised."""
    return bool(result.findings) and all(each.evidence.get("kind") == "raised" for each in result.findings)


def _is_looked_at(entry: Entry, planned: Sequence[Point], facts: Mapping[str, Any]) -> bool:
    """Whether the plan held points that could have shown what this check is about."""
    has = {
        "gradients": True,  # every plan asks for them wherever the subject has them
        "values": any(point.values != "normal" for point in planned),
        "dtypes": any(point.dtype != facts.get("dtype") for point in planned),
    }
    return all(has[need] for need in needs_of(entry.answers))


def _is_foreign_dtype(measurement: Measurement, facts: Mapping[str, Any]) -> bool:
    """Whether the subject raised in a dtype that nobody asked for: then it is not made for it.

    Unless a statement of its own raised that, which speaks of no dtype: its words are of another trouble. A subject
    that could not be loaded has no dtype.
    """
    trouble, own = measurement.trouble, facts.get("dtype", measurement.point.dtype)
    if trouble is None or trouble.kind != "raised" or measurement.point.dtype == own:
        return False
    line = linecache.getline(trouble.place.file, trouble.place.line).strip()
    is_by_itself = line.startswith(("raise ", "assert "))
    return not is_by_itself or _OF_A_DTYPE.search(f"{trouble.message} {line}") is not None
