"""One mutant before the policy: whether it changes anything, and whether it is noticed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nsa_doctor.core.errors import Caught, UsageError, attempt
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report, Result
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.core.policy_verdict import PolicyVerdict
from nsa_doctor.core.proof import Fate, MutantFate
from nsa_doctor.engine.conclusions import is_swept
from nsa_doctor.engine.run import RunRequest, results_of
from nsa_doctor.engine.session import Session
from nsa_doctor.isolation.supervisor import Supervisor, SupervisorClosedError
from nsa_doctor.policy.policy import Policy
from nsa_doctor.policy.proving.mutants import Mutant
from nsa_doctor.policy.verdict import Evidence, decide

_UNCOUNTED: Mapping[str, Fate] = {
    "same": "same",
    "other order": "other order",
    "other parameters": "other parameters",
    "raises": "raises",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How every mutant is tried: on which terms, by which checks, and against which record of the subject as it is.

    `subject` is what the report of it as it is declares; `seconds` say how long each check took there, so that the
    shortest come first.
    """

    examination_request: ExaminationRequest
    policy: Policy
    checks: RunRequest
    subject: Mapping[str, Any]
    seconds: Mapping[str, float]
    sweep_seconds: float
    record: str

    def fate_of(self, mutant: Mutant, started: Callable[[Supervisor], None]) -> MutantFate | None:
        """What becomes of it; None where the work was interrupted. `started` gets what a person may end it by."""
        begin = time.perf_counter()
        request = replace(self.examination_request, replaced=((mutant.file, mutant.text),))
        supervisor = Supervisor(request)
        started(supervisor)
        answer = attempt(lambda: self._tried(Session(request, self._codes), supervisor))
        attempt(supervisor.close)
        if isinstance(answer, Caught):
            if isinstance(answer.error, SupervisorClosedError):
                return None
            answer = _refused(answer)
        fate, changed, by = answer
        return MutantFate(
            file=mutant.file,
            line=mutant.line,
            kind=mutant.kind,
            before=mutant.before,
            after=mutant.after,
            fate=fate,
            changed=changed,
            by=by,
            seconds=time.perf_counter() - begin,
        )

    @cached_property
    def _codes(self) -> frozenset[str]:
        return frozenset(entry.manual.code for entry in self.checks.checks)

    def _tried(self, session: Session, supervisor: Supervisor) -> tuple[Fate, str, str]:
        session.load(supervisor)
        if not session.facts:
            return "raises", _first_message(session.results.values()), ""
        effect = supervisor.effect(self.record)
        if isinstance(effect, Trouble):
            changed = effect.message
        elif (uncounted := _UNCOUNTED.get(effect["kind"])) is not None:
            return uncounted, effect["said"], ""
        else:
            changed = effect["said"]
        fate, by = self._judged(session, supervisor)
        return fate, changed, by

    def _judged(self, session: Session, supervisor: Supervisor) -> tuple[Fate, str]:
        """By the policy, check by check, until one speaks against a GO."""
        for step in self._steps(session, supervisor):
            step()
            if session.has_failed and (verdict := self._verdict(session)).decision == "NO-GO":
                return "noticed", verdict.why[0]
        verdict = self._verdict(session)
        return ("missed", "") if verdict.decision == "GO" else ("unknown", verdict.why[0])

    def _steps(self, session: Session, supervisor: Supervisor) -> Sequence[Callable[[], object]]:
        """The sweep and every other check, those first that took the least time."""
        timed: list[tuple[float, Callable[[], object]]] = [
            (self.seconds.get(entry.manual.code, 0.0), lambda entry=entry: session.check(entry, supervisor))
            for entry in self.checks.checks
            if not is_swept(entry)
        ]
        if len(timed) < len(self.checks.checks):
            timed.append((self.sweep_seconds, lambda: session.sweep(supervisor)))
        return [step for _, step in sorted(timed, key=lambda pair: pair[0])]

    def _verdict(self, session: Session) -> PolicyVerdict:
        results = results_of(session, self.checks)
        report = Report(command="go-no-go", subject=self.subject, options={}, environment={}, results=results)
        beside = tuple(each.code for each in results if each.code not in self._codes and each.findings)
        return decide(report, self.policy, Evidence(obstacles=beside))


def _refused(caught: Caught) -> tuple[Fate, str, str]:
    """A subject that cannot be imported any more raises; where the doctor's own code fails nothing is known."""
    if isinstance(caught.error, UsageError):
        return "raises", str(caught.error), ""
    if isinstance(caught.error, KeyboardInterrupt | SystemExit):
        raise caught.error
    return "unknown", "", caught.sentence


def _first_message(results: Iterable[Result]) -> str:
    found = (finding.message for result in results for finding in result.findings)
    return next(found, "it cannot be loaded")
