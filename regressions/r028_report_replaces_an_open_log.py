"""r028 report-replaces-an-open-log

Reported: found in the tests of this project, when they came to run commands with files as standard output.
Symptom: `nsa-doctor sweep --output /dev/stdout >> log` leaves the report in the log, and nothing of what was there;
    what the shell writes there afterwards goes nowhere.
Cause: a report is written to a file of its own that then takes the place of the one named, so that no reader sees half
    of it; /dev/stdout was followed to the log behind it, and the log was taken for such a file. Established by
    appending to one. Now /dev/stdout and /dev/fd/N are written to through the descriptor that they stand for, and the
    file behind it is neither truncated nor replaced.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from nsa_doctor.cases.record import Case

_SECONDS = 50


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        with log.open("w") as stream:
            stream.write("before\n")
        with log.open("a") as stream:
            command = [sys.executable, "-m", "nsa_doctor", "render", "--schema", "--output", "/dev/stdout"]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, timeout=_SECONDS, check=True)  # noqa: S603
            stream.write("after\n")
        lines = log.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before", f"the log begins with {lines[0]!r}"
    assert lines[-1] == "after", f"the log ends with {lines[-1]!r}"
    assert "{" in lines, "the report is not in the log"


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
