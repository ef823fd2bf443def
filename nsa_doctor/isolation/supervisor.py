"""Examines in a child process: hangs and deaths come back as troubles, and work goes on in a fresh child."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.errors import InternalError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import DEVICE_LOST
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.frames import top_package
from nsa_doctor.core.measurement import Diagnosis, Measurement, Place, Point, Trouble, to_json, trouble_from_json
from nsa_doctor.core.package import is_doctors
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.isolation import sanitizer
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError, WorkerSlowError
from nsa_doctor.isolation.postmortem import HangHistory, trouble_of
from nsa_doctor.isolation.worker_process import STARTUP_SECONDS, WorkerProcess

_MOST_FAILURES = 3
_MOST_TRIED_AGAIN = 2  # to see more of where it ends
_TRIED_AGAIN_SECONDS = 60.0
_PROGRESS_SECONDS = 10.0
_TRACING_FACTOR = 4.0  # a traced pass may take this many times as long as a measured one

_ROOMS = {"module": "nsa_doctor.worker.handlers", "function": "nsa_doctor.worker.function_main"}


class SupervisorClosedError(Exception):
    """The supervisor was closed while it was at work."""


@dataclass
class Supervisor:
    """Measures and traces in a child; after a hang or a death the next question goes to a new one.

    `tell` hears in words what takes long: that something compiles.
    """

    examination_request: ExaminationRequest
    tell: Callable[[str], object] = lambda text: None
    facts: dict[str, Any] = field(default_factory=dict)
    history: HangHistory = field(default_factory=HangHistory)
    _child: WorkerProcess | None = None
    children: list[WorkerProcess] = field(default_factory=list)
    _failures: int = 0
    _tried_again: int = 0
    _is_interrupted: bool = False
    _avoided: set[tuple[int, str, str]] = field(default_factory=set)
    _not_asked: set[int] = field(default_factory=set)
    _last_length: int | None = None

    def load(self) -> list[Measurement]:
        """Start a child and load the subject; what went wrong on the way. Nothing can be measured where no facts are.

        Raises UsageError and InternalError.
        """
        troubles: list[Measurement] = []
        while not self.facts and self._failures < _MOST_FAILURES:
            trouble, length = self._load()
            if trouble is None:
                break
            troubles.append(
                Measurement(point=Point(length=length or self.examination_request.lengths[0]), trouble=trouble)
            )
            if length is None:
                break
            self._not_asked.add(length)
        return [*troubles, *(Measurement.from_json(each) for each in self.facts.get("seen", ()))]

    def measure(self, point: Point) -> Measurement:
        """Measure one point; a trouble of kind not_measured says that it was not tried and why."""
        if self._failures >= _MOST_FAILURES:
            return _not_measured(point, f"given up after {_MOST_FAILURES} hangs or deaths")
        if (point.length, point.dtype, point.values) in self._avoided:
            return _not_measured(point, "not tried again at a length that hung or died")
        answer = self._ask({"do": "measure", "point": to_json(point)}, self.examination_request.timeout)
        if isinstance(answer, Trouble):
            self._avoided.add((point.length, point.dtype, point.values))
            if (point.dtype, point.values) == (self.facts.get("dtype"), "normal"):
                self.history.fatal_lengths.add(point.length)
            return Measurement(point=point, trouble=answer)
        measurement = Measurement.from_json(answer["measured"])
        self.history.slowest_pass = max(self.history.slowest_pass, measurement.seconds or 0.0)
        if measurement.trouble is not None and "CUDA error" in measurement.trouble.message:
            self.close()  # a CUDA context does not survive one
        return measurement

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        """Trace one point."""
        seconds = self.examination_request.timeout * _TRACING_FACTOR
        answer = self._ask({"do": "diagnose", "point": to_json(point), "raises": raises}, seconds)
        if isinstance(answer, Trouble):
            return Diagnosis(point=point, target="", reason=f"traced, {answer.message}")
        return Diagnosis.from_json(answer["diagnosed"])

    def check(
        self,
        code: str,
        seconds: float,
        planted: bool = False,
        at_most: float = math.inf,
        left: Mapping[str, Any] | None = None,
    ) -> Result:
        """Run one check; a call that takes longer than `seconds` is TIMEOUT and a death FAIL, each with its line.

        `left` are the modes, the longest length and the lengths to avoid where not all of the subject is examined.
        A check that is not finished after `at_most` seconds is SKIP, and so is every one after too many failures.
        """
        name = registry.manual(code).name
        if self._failures >= _MOST_FAILURES:
            reason = f"given up after {_MOST_FAILURES} hangs or deaths"
            return Result(code=code, name=name, verdict=Verdict.SKIP, reason=reason)
        avoided = self.history.fatal_lengths.union(() if left is None else left["avoided"])
        request = {"do": "check", "code": code, "planted": planted, "avoid": sorted(avoided), "left": left}
        start = time.perf_counter()
        try:
            answer = self._ask(request, seconds, at_most)
        except WorkerSlowError as slow:
            self._child = None
            return Result(code=code, name=name, verdict=Verdict.SKIP, reason=str(slow), seconds=slow.seconds)
        if not isinstance(answer, Trouble):
            result = Result.from_json(answer["checked"])
            if not _has_lost_device(result):
                return result
            self.close()
            return self._located(request, seconds) or result
        verdict = Verdict.TIMEOUT if answer.kind == "timeout" else Verdict.FAIL
        message = f"the call does not return: {answer.message}" if answer.kind == "timeout" else answer.message
        message += f" {'while' if answer.phase == 'loading' else 'in'} {answer.phase}" if answer.phase else ""
        message += f" at S={self._last_length}" if self._last_length is not None else ""
        repro = CommandLine.asked(self.examination_request, self.facts).check(code)
        evidence = {"kind": answer.kind}
        finding = Finding(code=code, message=message, where=answer.place, evidence=evidence, repro=repro)
        spent = time.perf_counter() - start
        return Result(code=code, name=name, verdict=verdict, findings=(finding,), seconds=spent)

    def fuzz(self, case: str | None) -> dict[str, Any] | Trouble:
        """What came of one case of `nsa-doctor fuzz`; without one, what the subject offers to be tried."""
        answer = self._ask({"do": "fuzz", "case": case}, self.examination_request.timeout)
        return answer if isinstance(answer, Trouble) else answer["fuzzed"]

    def time(self, length: int, repeats: int) -> dict[str, Any] | Trouble:
        """Seconds and counts of passes at one length."""
        return self._timed({"do": "time", "length": length, "repeats": repeats})

    def time_shares(self, length: int) -> dict[str, Any] | Trouble:
        """The share of the time of a pass that each part takes."""
        return self._timed({"do": "time shares", "length": length})

    def reached(self, lengths: Sequence[int]) -> dict[str, Any] | Trouble:
        """The lines of its own sources that the subject reaches, by file, and files that are left out and why."""
        seconds = self.examination_request.timeout * _TRACING_FACTOR
        answer = self._ask({"do": "reached", "lengths": list(lengths)}, seconds)
        return answer if isinstance(answer, Trouble) else answer["reached"]

    def effect(self, file: str, lengths: Sequence[int] | None = None) -> dict[str, Any] | Trouble:
        """Write what the subject gives at these lengths to a file; without any, how it differs from what is there."""
        request = {"do": "effect", "file": file, "lengths": None if lengths is None else list(lengths)}
        answer = self._ask(request, self.examination_request.timeout)
        return answer if isinstance(answer, Trouble) else answer["effect"]

    def describe_machine(self) -> dict[str, Any] | Trouble:
        """Facts about the machine the child runs on."""
        answer = self._ask({"do": "describe machine"}, STARTUP_SECONDS)
        return answer if isinstance(answer, Trouble) else answer["machine"]

    def _timed(self, request: dict[str, Any]) -> dict[str, Any] | Trouble:
        answer = self._ask(request, self.examination_request.timeout)
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
            answer = self._child.ask(self._timed_request(request), self._patience(seconds), at_most, self._listener())
        except (WorkerHungError, WorkerDiedError) as failure:
            return self._failed(failure, request, seconds)
        self.history.slowest_seconds = max(self.history.slowest_seconds, self._child.longest_seconds)
        return answer

    @property
    def _is_function(self) -> bool:
        return self.examination_request.kind == "function"

    def _timed_request(self, request: dict[str, Any]) -> dict[str, Any]:
        return {**request, "compile_seconds": self.examination_request.compile_timeout}

    def _listener(self) -> Callable[[dict[str, Any]], None]:
        """Hears a child's events, and tells of every ten seconds in which something compiles."""
        reported = 0.0

        def listen(event: dict[str, Any]) -> None:
            nonlocal reported
            if event["event"] != "compiling":
                reported = 0.0
            elif event["seconds"] >= reported + _PROGRESS_SECONDS:
                reported = event["seconds"]
                self.tell(f"compiling ({event['what']}), {reported:.0f} s")

        return listen

    def _patience(self, seconds: float) -> float:
        return self.history.patience(seconds) if self.examination_request.explore else seconds

    def _load(self) -> tuple[Trouble | None, int | None]:
        """What went wrong, and at which length when the module was being tried."""
        request = self._loading()
        child = self._start()
        try:
            seconds = self._patience(self.examination_request.timeout)
            answer = child.ask(self._timed_request(request), seconds, listen=self._listener())
        except (WorkerHungError, WorkerDiedError) as failure:
            length = failure.crash.event.get("length")
            trouble = self._failed(failure, request, self.examination_request.timeout)
            is_called = self._is_function and trouble.phase
            return trouble if is_called else replace(trouble, phase="forward" if length else "loading"), length
        if "trouble" in answer:
            self.close()
            return trouble_from_json(answer["trouble"]), None
        self.facts = self.facts or answer["loaded"]
        return None, None

    def _loading(self) -> dict[str, Any]:
        """The request to load the subject; how long a sequence it serves is found out once."""
        examination_request = self.examination_request
        lengths = [length for length in examination_request.lengths if length not in self._not_asked]
        subject: dict[str, Any] = {"spec": examination_request.spec, "config": examination_request.config}
        subject |= {"input": examination_request.input, "width": examination_request.width}
        subject |= {"declared": examination_request.declared, "train": examination_request.train}
        subject |= {"size": examination_request.size}
        if examination_request.like is not None:
            names = ("like", "reference", "inputs")
            subject |= {name: getattr(examination_request, name) for name in names}
        return {
            "do": "load",
            "startup_seconds": STARTUP_SECONDS,
            "making_seconds": examination_request.timeout,
            "subject": {**subject, "seed": examination_request.seed, "lengths": lengths},
            "explore": examination_request.explore and not self.facts and not examination_request.found_out,
            "found_out": self.facts.get("found_out", dict(examination_request.found_out)),
            "replaced": dict(examination_request.replaced),
            "avoid": sorted(self._not_asked),
            "conditions": {
                "seed": examination_request.seed,
                "device": examination_request.device,
                "forward_only": examination_request.forward_only,
                "measures_memory": not examination_request.explore,
            },
            "boundaries_up_to": examination_request.boundaries_up_to,
            "are_all_lengths": examination_request.are_all_lengths,
            "profile": examination_request.profile,
            "dtype": examination_request.dtype,
            "threads": examination_request.threads,
        }

    def _failed(self, failure: WorkerHungError | WorkerDiedError, request: dict[str, Any], seconds: float) -> Trouble:
        self._gone()
        self._failures += 1
        event = failure.crash.event
        length = event.get("length")
        self._last_length = length if isinstance(length, int) else None
        if self._last_length is not None:
            self.history.fatal_lengths.add(self._last_length)
        trouble, is_exact = self._trouble(failure)
        self.history.has_hung |= trouble.kind == "timeout"
        if not is_exact:
            place = self.history.knows(trouble.place)
            again = None
            if not place.module and self._is_worth_another_look(failure):
                again = self._looked_again(request, seconds)
            phase = trouble.phase or ("" if again is None else again.phase)
            trouble = replace(trouble, place=place if again is None else again.place, phase=phase)
        if self._is_function and is_doctors(trouble.place.file):  # it waits for what was launched before
            trouble = replace(trouble, place=Place(**self.facts.get("place", {})))
        self.history.learn(trouble.place)
        return trouble

    def _trouble(self, failure: WorkerHungError | WorkerDiedError) -> tuple[Trouble, bool]:
        return trouble_of(failure, top_package(self.examination_request.spec), self.facts.get("code", ()))

    def _is_worth_another_look(self, failure: WorkerHungError | WorkerDiedError) -> bool:
        """Whether more may be found out: of a death at any time, of a hang once there is a module or a function."""
        has_more = isinstance(failure, WorkerDiedError) or bool(self.facts or failure.crash.made) or self._is_function
        return has_more and self._tried_again < _MOST_TRIED_AGAIN

    def _looked_again(self, request: dict[str, Any], seconds: float) -> Trouble | None:
        """How the same request ends in a child that writes down every line before it runs; None where it does not."""
        self._tried_again += 1
        child = self._start(is_line_recorded=True)
        try:
            if request["do"] != "load":
                child.ask(self._timed_request(self._loading()), seconds)
            child.ask(self._timed_request(request), self._patience(seconds), _TRIED_AGAIN_SECONDS)
        except (WorkerHungError, WorkerDiedError) as failure:
            self._gone()
            trouble, _ = self._trouble(failure)
            return trouble if trouble.place.file else None
        except WorkerSlowError:
            return None
        finally:
            child.close()
            self._child = None
        return None

    def _located(self, request: dict[str, Any], seconds: float) -> Result | None:
        """The same check where each kernel is waited for at the line that launches it; None unless it ends alike.

        Where there is compute-sanitizer, it says which access it was.
        """
        if self._tried_again >= _MOST_TRIED_AGAIN:
            return None
        self._tried_again += 1
        result = self._checked_again(request, seconds, _TRIED_AGAIN_SECONDS)
        program = sanitizer.find()
        if result is None or program is None:
            return result
        self.tell("looking for the access with compute-sanitizer")
        with TemporaryDirectory() as folder:
            self._checked_again(request, sanitizer.SECONDS, sanitizer.SECONDS, sanitizer.watching(program, folder))
            access = sanitizer.read(folder)
        if access is None:
            return result
        findings = (access.added_to(each) if _is_of_device(each) else each for each in result.findings)
        return replace(result, findings=tuple(findings))

    def _checked_again(
        self, request: dict[str, Any], seconds: float, at_most: float, under: Sequence[str] = ()
    ) -> Result | None:
        """The same check in a new child that waits for each kernel; None unless it ends alike."""
        child = self._start(is_line_recorded=True, under=under)
        try:
            child.ask(self._timed_request(self._loading()), seconds)
            answer = child.ask(self._timed_request(request), seconds, at_most)
        except (WorkerHungError, WorkerDiedError, WorkerSlowError, InternalError):  # without a device anything breaks
            self._gone()
            return None
        finally:
            child.close()
            self._child = None
        result = Result.from_json(answer["checked"])
        return result if _has_lost_device(result) else None

    def _start(self, is_line_recorded: bool = False, under: Sequence[str] = ()) -> WorkerProcess:
        """A new child; none when the supervisor was interrupted while it started."""
        room = _ROOMS[self.examination_request.kind]
        self._child = child = WorkerProcess(room, is_line_recorded=is_line_recorded, under=under)
        self.children.append(child)
        if self._is_interrupted:
            self.close()
            raise SupervisorClosedError
        return child

    def _gone(self) -> None:
        """The child is no more, perhaps since somebody ended it."""
        self._child = None
        if self._is_interrupted:
            raise SupervisorClosedError


def _has_lost_device(result: Result) -> bool:
    return any(_is_of_device(finding) for finding in result.findings)


def _is_of_device(finding: Finding) -> bool:
    return finding.evidence.get("kind") == DEVICE_LOST


def _not_measured(point: Point, why: str) -> Measurement:
    return Measurement(point=point, trouble=Trouble(kind="not_measured", message=why))
