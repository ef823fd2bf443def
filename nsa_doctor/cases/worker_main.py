"""The process in which one case runs, or one part of what it proves."""

import importlib
import io
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa_doctor.cases.record import Case, CaseOutcome, NotForThisMachineError, Plant, Sight, Status
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.reproduce import reproduce
from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.isolation.side_by_side import side_by_side
from nsa_doctor.isolation.start import Children

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel

_COMMAND = (
    "nsa_doctor.cli.main:serve"  # by name, as a shell would: the command line runs cases, and cases the command line
)
_NO_ASSERTIONS = "Python drops the assertions that say whether a bug is back: unset PYTHONOPTIMIZE"


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request to run a case, or a `part` of it."""
    keep_to_one_thread()
    return _answer


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    os.chdir(request["folder"])
    sys.path += [each for each in request["path"] if each not in sys.path]
    if "part" in request:
        return asdict(_part(_load(request["module"]), request["part"]))
    return asdict(run_case(request["module"], request["at_a_time"], request))


def run_case(module: str, at_a_time: int = 1, request: dict[str, Any] | None = None) -> CaseOutcome:
    """The bug is absent from the code that ships, and each plant of it is found where it has to be.

    at_a_time: in how many processes that is tried; 1 is this one, and more are forks of it that meet the `request`.
    """
    name = module.rpartition(".")[2][:4]
    if not __debug__:
        return CaseOutcome(id=name, status="broken", reason=_NO_ASSERTIONS)
    start = time.perf_counter()
    case = attempt(lambda: _load(module))
    if isinstance(case, Caught):
        return CaseOutcome(id=name, status="broken", reason=case.sentence)
    numbers = range(1 + len(case.plants))
    parts = attempt(
        lambda: _apart(request, numbers, at_a_time) if request and at_a_time > 1 else [_part(case, n) for n in numbers]
    )
    if isinstance(parts, Caught):
        return CaseOutcome(id=name, status="broken", reason=parts.sentence)
    sights = tuple(sight for part in parts[1:] for sight in part.sights)
    outcome = _ended(name, case, parts[0].status, parts[0].reason, sights)
    return CaseOutcome(**{**vars(outcome), "seconds": time.perf_counter() - start})


def _apart(request: dict[str, Any], numbers: range, at_a_time: int) -> list[CaseOutcome]:
    """Every part in a process of its own; raises ChildProcessError for one that ends without an answer."""
    answers: dict[int, CaseOutcome] = {}

    def keep(number: int, answer: dict[str, Any] | Caught) -> None:
        if isinstance(answer, Caught):
            raise ChildProcessError(f"part {number + 1} of {len(numbers)}: {answer.error}")
        answers[number] = CaseOutcome.from_json(answer)

    seconds = request["making_seconds"]
    side_by_side(__name__, [{**request, "part": number} for number in numbers], seconds, at_a_time, keep)
    return [answers[number] for number in numbers]


def _part(case: Case, number: int) -> CaseOutcome:
    """The code that ships, which comes first: what is planted must not be in its way. Then the plants."""
    Children.are_forked &= "torch" in sys.modules and _can_be_forked()
    if number:
        return CaseOutcome(id="", status="absent", sights=(_sight(case.plants[number - 1]),))
    status, reason = _reproduced(case)
    return CaseOutcome(id="", status=status, reason=reason)


def _can_be_forked() -> bool:
    from nsa_doctor.probes.model.state import can_be_forked

    return can_be_forked()


def _load(module: str) -> Case:
    case: Case = importlib.import_module(module).CASE
    return case


def _reproduced(case: Case) -> tuple[Status, str]:
    """How the code that ships does, and why it is not as it should be."""
    answer = attempt(case.reproduce)
    if not isinstance(answer, Caught):
        return "absent", ""
    if isinstance(answer.error, NotForThisMachineError):
        return "skipped", str(answer.error)
    return "back" if isinstance(answer.error, AssertionError) else "broken", answer.sentence


def _ended(name: str, case: Case, status: Status, reason: str, sights: tuple[Sight, ...]) -> CaseOutcome:
    if status != "absent":
        return CaseOutcome(id=name, status=status, reason=reason, sights=sights)
    missed = [sight for sight in sights if sight.complaint]
    if missed:
        reason = "; ".join(f"{sight.name}: {sight.complaint}" for sight in missed)
        return CaseOutcome(id=name, status="missed", reason=reason, sights=sights)
    if case.unplanted and not case.plants:
        return CaseOutcome(id=name, status="absent", reason=f"not planted: {case.unplanted}")
    if not any(not sight.skipped for sight in sights):
        return CaseOutcome(id=name, status="broken", reason="no plant of it was tried", sights=sights)
    return CaseOutcome(id=name, status="absent", sights=sights)


def _sight(plant: Plant) -> Sight:
    """What the command line makes of one plant, through the entry that a user has."""
    from nsa_doctor.render.reading import read_report

    with tempfile.TemporaryDirectory(prefix="nsa-doctor-") as place:
        folder = Path(place) / "plant"
        folder.mkdir()
        words = attempt(lambda: list(plant.command(folder)))
        if isinstance(words, Caught):
            if isinstance(words.error, NotForThisMachineError):
                return Sight(name=plant.name, command="", skipped=str(words.error))
            return Sight(name=plant.name, command="", complaint=f"it cannot be planted: {words.sentence}")
        report_file = Path(place) / "report.json"
        errors = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            code = pkgutil.resolve_name(_COMMAND)([*words, "--quiet", *_written_to(words[0], report_file)])
        command = reproduce(words[0], words[1:]).replace(str(folder), "FOLDER")
        if not report_file.exists():
            text = errors.getvalue().strip()
            return Sight(name=plant.name, command=command, complaint=f"no report, exit code {code}: {text}")
        report = read_report(report_file)
        return Sight(
            name=plant.name,
            command=command,
            findings=report.findings,
            decision=report.decision.value,
            complaint=plant.expected(report),
        )


def _written_to(command: str, file: Path) -> list[str]:
    """Words that make a command write its report there."""
    is_folder = command in ("go-no-go", "smoke")
    return ["--output", str(file.parent)] if is_folder else ["--format", "json", "--output", str(file)]
