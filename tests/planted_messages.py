"""The message of each check on the fault that it plants: python -m tests.planted_messages [CODE ...] writes them.

They are docs/messages.json, which the page of each check on the site shows; numbers are those of one machine.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

from nsa_doctor.adapters.nsa_layer import builtin_subject
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Finding, Result
from nsa_doctor.core.text import from_here
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.testing.training_runs import trained
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import test_checks as of_others
from tests.nsa_doctor.checks.test_checks_of_checkpoints import written_checkpoint
from tests.nsa_doctor.conftest import HERE
from tests.nsa_doctor.functions import test_function_checks as of_functions

MESSAGES = Path(__file__).parents[1] / "docs" / "messages.json"
WITHOUT = dict.fromkeys(of_functions.ON_A_GPU, "needs a GPU")  # and why


def main(codes: Sequence[str]) -> str | None:
    """Write the messages of these checks, of all where none is named, as soon as each is known; and which have none."""
    refused = []
    for code in codes or [code for code in registry.entries() if code not in WITHOUT]:
        try:
            said = message(code)
        except ValueError as error:
            refused.append(str(error))
            continue
        kept = {**(messages() if MESSAGES.exists() else {}), code: said}
        MESSAGES.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        print(code, said, flush=True)
    return "\n".join(refused) or None


def messages() -> dict[str, str]:
    """What was written: a message for each code."""
    read: dict[str, str] = json.loads(MESSAGES.read_text(encoding="utf-8"))
    return read


def message(code: str) -> str:
    """What the check says first of the fault that it plants, a note where it writes no more; else ValueError."""
    result = planted_result(code)
    findings: Sequence[Finding] = [each for each in result.findings if each.code == code]
    notes = result.notes if code in of_functions.ONLY_NOTES else ()
    said = [*(each.message for each in findings), *(f"note: {note}" for note in notes)]
    if not said:
        raise ValueError(f"{code} ended as {result.verdict} on the fault that it plants: {result.reason}")
    return re.sub(rf"{re.escape(gettempdir())}/\w+/", "", from_here(said[0]))


def planted_result(code: str) -> Result:
    """How the check ends on the fault that it plants."""
    check, kind = registry.load(code), registry.entries()[code].examines
    if check.isolate:
        return isolated_result(code)
    if kind == "module":
        subject = of_others.subject_for(code, builtin_subject(str(HERE / "small.yaml")))
        return run_check(check, check.planted(subject)).parted()[0]
    if kind == "function":
        return judge(check, check.planted(of_functions.subject_for(code)))
    healthy = {
        "checkpoint": written_checkpoint,
        "data": of_others.source_of_batches,
        "run": lambda: trained(is_computed_again=True),
    }[kind]
    return judge(check, check.planted(healthy()))


def isolated_result(code: str) -> Result:
    """How a check ends in a child process whose call takes too long."""
    supervisor = Supervisor(ExaminationRequest(config=str(HERE / "small.yaml")))
    try:
        assert supervisor.load() == []
        return supervisor.check(code, seconds=1, planted=True)
    finally:
        supervisor.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
