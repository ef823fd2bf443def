"""A laboratory in a child process: hangs and deaths come back as troubles, and work goes on in a fresh child."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nsa_doctor import registry
from nsa_doctor.check import Profile
from nsa_doctor.finding import Finding, Result, Verdict
from nsa_doctor.frames import FrameFilter, Line
from nsa_doctor.isolate import STARTUP_SECONDS, ChildDiedError, ChildHungError, ChildProcess, ChildSlowError
from nsa_doctor.measurement import Diagnosis, Measurement, Place, Point, Trouble, to_json, trouble_from_json

_MOST_FAILURES = 3
_ONCE_HUNG = 0.25
_TRACING_FACTOR = 4.0  # a traced pass may take this many times as long as a measured one


class UsageError(ValueError):
    """The request cannot be served; one sentence says what would be right."""


class InterruptedLaboratoryError(Exception):
    """The laboratory was closed while it was at work."""


class DoctorBrokeError(Exception):
    """The doctor's own code failed in the child."""

    def __init__(self, sentence: str, traceback: str) -> None:
        super().__init__(sentence)
        self.traceback = traceback


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Whom to examine and under which conditions.

    `timeout` is what one measurement, or one call in a check, may take, in seconds; `dtype` None is the subject's own;
    `threads` 0 leaves their number to torch; `explore` finds out how long a sequence a foreign subject serves.
    """

    spec: str | None = None
    config: str | None = None
    input: str | None = None
    width: int | None = None
    device: str = "cpu"
    dtype: str | None = None
    seed: int = 0
    profile: Profile = "quick"
    threads: int = 0
    explore: bool = False
    forward_only: bool = False
    lengths: tuple[int, ...] = (128,)
    boundaries_up_to: int | None = None
    are_all_lengths: bool = False
    timeout: float = 60.0


@dataclass
class IsolatedLaboratory:
    """Measures and traces in a child; after a hang or a death the next question goes to a new one."""

    assignment: Assignment
    facts: dict[str, Any] = field(default_factory=dict)
    _child: ChildProcess | None = None
    _failures: int = 0
    _is_interrupted: bool = False
    _avoided: set[tuple[int, str, str]] = field(default_factory=set)
    _not_asked: set[int] = field(default_factory=set)
    _fatal_lengths: set[int] = field(default_factory=set)
    _last_length: int | None = None
    _has_hung: bool = False

    def load(self) -> list[Measurement]:
        """Start a child and load the subject; what went wrong on the way, which leaves nothing to measure if no facts.

        Raises UsageError and DoctorBrokeError.
        """
        troubles: list[Measurement] = []
        while not self.facts and self._failures < _MOST_FAILURES:
            trouble, length = self._load()
            if trouble is None:
                break
            troubles.append(Measurement(point=Point(length=length or self.assignment.lengths[0]), trouble=trouble))
            if length is None:
                break
            self._not_asked.add(length)
        return troubles

    def measure(self, point: Point) -> Measurement:
        """Measure one point; a trouble of kind not_measured says that it was not tried and why."""
        if self._failures >= _MOST_FAILURES:
            return _not_measured(point, f"given up after {_MOST_FAILURES} hangs or deaths")
        if (point.length, point.dtype, point.values) in self._avoided:
            return _not_measured(point, "not tried again at a length that hung or died")
        answer = self._ask({"do": "measure", "point": to_json(point)}, self.assignment.timeout)
        if isinstance(answer, Trouble):
            self._avoided.add((point.length, point.dtype, point.values))
            return Measurement(point=point, trouble=answer)
        measurement = Measurement.from_json(answer["measured"])
        if measurement.trouble is not None and "CUDA error" in measurement.trouble.message:
            self.close()  # a CUDA context does not survive one
        return measurement

    def diagnose(self, point: Point) -> Diagnosis:
        """Trace one point."""
        seconds = self.assignment.timeout * _TRACING_FACTOR
        answer = self._ask({"do": "diagnose", "point": to_json(point)}, seconds)
        if isinstance(answer, Trouble):
            return Diagnosis(point=point, target="", reason=f"traced, {answer.message}")
        return Diagnosis.from_json(answer["diagnosed"])

    def check(self, code: str, seconds: float, planted: bool = False, at_most: float = math.inf) -> Result:
        """Run one check; a call that takes longer than `seconds` is TIMEOUT and a death FAIL, each with its line.

        A check that is not finished after `at_most` seconds is SKIP, and so is every one after too many failures.
        """
        name = registry.manual(code).name
        if self._failures >= _MOST_FAILURES:
            reason = f"given up after {_MOST_FAILURES} hangs or deaths"
            return Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason)
        request = {"do": "check", "code": code, "planted": planted, "avoid": sorted(self._fatal_lengths)}
        start = time.perf_counter()
        try:
            answer = self._ask(request, seconds, at_most)
        except ChildSlowError as slow:
            self._child = None
            return Result(code=code, name=name, verdict=Verdict.SKIP, reason=str(slow), seconds=slow.seconds)
        if not isinstance(answer, Trouble):
            return Result.from_json(answer["checked"])
        verdict = Verdict.TIMEOUT if answer.kind == "timeout" else Verdict.FAIL
        message = f"the call does not return: {answer.message}" if answer.kind == "timeout" else answer.message
        message += f" at S={self._last_length}" if self._last_length is not None else ""
        options = self.facts.get("options", ())
        repro = shlex.join(["nsa-doctor", "run", "--select", code, *options, "--seed", str(self.assignment.seed)])
        evidence = {"kind": answer.kind}
        finding = Finding(code=code, message=message, where=answer.place, evidence=evidence, repro=repro)
        spent = time.perf_counter() - start
        return Result(code=code, name=name, verdict=verdict, findings=(finding,), seconds=spent)

    def fuzz(self, case: str | None) -> dict[str, Any] | Trouble:
        """What came of one case of `nsa-doctor fuzz`; without one, what the subject offers to be tried."""
        answer = self._ask({"do": "fuzz", "case": case}, self.assignment.timeout)
        return answer if isinstance(answer, Trouble) else answer["fuzzed"]

    def time(self, length: int, repeats: int) -> dict[str, Any] | Trouble:
        """Seconds and counts of passes at one length."""
        return self._timed({"do": "time", "length": length, "repeats": repeats})

    def time_shares(self, length: int) -> dict[str, Any] | Trouble:
        """The share of the time of a pass that each part takes."""
        return self._timed({"do": "time shares", "length": length})

    def describe_machine(self) -> dict[str, Any] | Trouble:
        """Facts about the machine the child runs on."""
        answer = self._ask({"do": "describe machine"}, STARTUP_SECONDS)
        return answer if isinstance(answer, Trouble) else answer["machine"]

    def _timed(self, request: dict[str, Any]) -> dict[str, Any] | Trouble:
        answer = self._ask(request, self.assignment.timeout)
        if isinstance(answer, Trouble):
            return answer
        timed = answer["timed"]
        return trouble_from_json(timed["trouble"]) if "trouble" in timed else timed

    def interrupt(self) -> None:
        """End the child from another thread than the one that is asking it; no answer comes any more."""
        self._is_interrupted = True
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, request: dict[str, Any], seconds: float, at_most: float = math.inf) -> dict[str, Any] | Trouble:
        if self._child is None:
            trouble, _ = self._load()
            if trouble is not None:
                return trouble
        assert self._child is not None
        try:
            return _checked(self._child.ask(request, self._patience(seconds), at_most))
        except (ChildHungError, ChildDiedError) as failure:
            return self._failed(failure)

    def _patience(self, seconds: float) -> float:
        """The time a call may take: a quarter of it once one has hung, since more may."""
        return seconds * _ONCE_HUNG if self._has_hung and self.assignment.explore else seconds

    def _load(self) -> tuple[Trouble | None, int | None]:
        """What went wrong, and at which length when the module was being tried."""
        assignment = self.assignment
        lengths = [length for length in assignment.lengths if length not in self._not_asked]
        subject: dict[str, Any] = {"spec": assignment.spec, "config": assignment.config}
        subject |= {"input": assignment.input, "width": assignment.width}
        request = {
            "do": "load",
            "startup_seconds": STARTUP_SECONDS,
            "subject": {**subject, "seed": assignment.seed, "lengths": lengths},
            "explore": assignment.explore,
            "avoid": sorted(self._not_asked),
            "conditions": {
                "seed": assignment.seed,
                "device": assignment.device,
                "forward_only": assignment.forward_only,
                "measures_memory": not assignment.explore,
            },
            "boundaries_up_to": assignment.boundaries_up_to,
            "are_all_lengths": assignment.are_all_lengths,
            "profile": assignment.profile,
            "dtype": assignment.dtype,
            "threads": assignment.threads,
        }
        self._child = ChildProcess()
        try:
            answer = _checked(self._child.ask(request, self._patience(assignment.timeout)))
        except (ChildHungError, ChildDiedError) as failure:
            length = failure.event.get("length")
            trouble = self._failed(failure)
            return replace(trouble, phase="forward" if length else "loading"), length
        if "trouble" in answer:
            self.close()
            return trouble_from_json(answer["trouble"]), None
        self.facts = self.facts or answer["loaded"]
        return None, None

    def _failed(self, failure: ChildHungError | ChildDiedError) -> Trouble:
        self._child = None
        if self._is_interrupted:
            raise InterruptedLaboratoryError
        self._failures += 1
        length = failure.event.get("length")
        self._last_length = length if isinstance(length, int) else None
        if isinstance(length, int) and failure.event["event"] == "calling":
            self._fatal_lengths.add(length)
        package = (self.assignment.spec or "").partition(".")[0]
        place = self._place(FrameFilter((package,) if package else ()).of_dump(failure.dump))
        if isinstance(failure, ChildHungError):
            self._has_hung = True
            return Trouble(kind="timeout", message=str(failure), place=place, traceback=failure.dump)
        return Trouble(kind="died", message=str(failure), place=place, traceback=failure.dump or failure.last_words)

    def _place(self, stack: Sequence[Line]) -> Place:
        """The deepest line of a stack, and the innermost module whose method is on it."""
        if not stack:
            return Place()
        place = Place(**asdict(stack[0]))
        for line in stack:
            for file, first, last, path, name in self.facts.get("code", []):
                if file == line.file and first <= line.line <= last:
                    return replace(place, module=path, module_class=name)
        return place


def _checked(answer: Mapping[str, Any]) -> dict[str, Any]:
    if "usage" in answer:
        raise UsageError(answer["usage"])
    if "broke" in answer:
        raise DoctorBrokeError(answer["broke"], answer["traceback"])
    return dict(answer)


def _not_measured(point: Point, why: str) -> Measurement:
    return Measurement(point=point, trouble=Trouble(kind="not_measured", message=why))
