"""The process in which one case runs: `python -m nsa_doctor.cases.worker_main MODULE ANSWER AT_A_TIME`."""

import importlib
import io
import json
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nsa_doctor.cases.parallel_forks import side_by_side
from nsa_doctor.cases.record import Case, CaseOutcome, NotForThisMachineError, Plant, Sight, Status
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.reproduce import reproduce
from nsa_doctor.isolation.openmp import keep_to_one_thread

_COMMAND = (
    "nsa_doctor.cli.main:serve"  # by name, as a shell would: the command line runs cases, and cases the command line
)
_NO_ASSERTIONS = "Python drops the assertions that say whether a bug is back: unset PYTHONOPTIMIZE"


def main() -> None:
    """Run the case of a module, and write how it ended to a file."""
    keep_to_one_thread()
    module, answer, at_a_time = sys.argv[1:]
    Path(answer).write_text(json.dumps(asdict(run_case(module, int(at_a_time)))), encoding="utf-8")


def run_case(module: str, at_a_time: int = 1) -> CaseOutcome:
    """The bug is absent from the code that ships, and each plant of it is found where it has to be.

    at_a_time: in how many processes that is tried, of which 1 is this one.
    """
    name = module.rpartition(".")[2][:4]
    if not __debug__:
        return CaseOutcome(id=name, status="broken", reason=_NO_ASSERTIONS)
    start = time.perf_counter()
    case = attempt(lambda: _load(module))
    if isinstance(case, Caught):
        return CaseOutcome(id=name, status="broken", reason=case.sentence)
    # The code that ships comes first: what is planted in this process must not be in the way.
    calls: list[Callable[[], Any]] = [partial(_reproduced, case), *(partial(_sight, each) for each in case.plants)]
    answers = attempt(lambda: side_by_side(calls, at_a_time) if at_a_time > 1 else [call() for call in calls])
    if isinstance(answers, Caught):
        return CaseOutcome(id=name, status="broken", reason=answers.sentence)
    (status, reason), *sights = answers
    outcome = _ended(name, case, status, reason, tuple(sights))
    return CaseOutcome(**{**vars(outcome), "seconds": time.perf_counter() - start})


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
            told = errors.getvalue().strip()
            return Sight(name=plant.name, command=command, complaint=f"no report, exit code {code}: {told}")
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


if __name__ == "__main__":
    main()
