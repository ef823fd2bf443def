"""r026 standard-streams-closed

Reported: found in a review of this project.
Symptom: started with standard input, output or error closed, as some schedulers start jobs, `nsa-doctor run` measures
    nothing and ends with UNKNOWN and exit code 3, whatever the module; with all of them closed it is NO-GO.
Cause: the first files and pipes that a process opens take the lowest numbers that are free: 0, 1 and 2. The pipes to
    the process that examines were among them, and starting it puts its own standard streams there, so that they were
    gone. Established by closing each of the three, and all. Now the command opens what is closed on nothing, before
    all else.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from nsa_doctor.cases.record import Case

_SECONDS = 50
_MODULE = "import torch\n\ndef make():\n    return torch.nn.Linear(8, 8)\n"
_WORDS = "run --subject harmless:make --select HNG101 --profile smoke --quiet --format json --output"


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "harmless.py").write_text(_MODULE, encoding="utf-8")
        report = Path(place) / "report.json"
        command = [sys.executable, "-m", "nsa_doctor", *_WORDS.split(), str(report)]
        code = subprocess.run(  # noqa: S603 (our own interpreter)
            command, cwd=place, timeout=_SECONDS, check=False, preexec_fn=_close_standard_streams
        ).returncode
        decision = json.loads(report.read_text(encoding="utf-8"))["decision"]
    assert (code, decision) == (0, "GO"), f"without standard streams it ends with {code} and {decision}"


def _close_standard_streams() -> None:
    for number in (0, 1, 2):
        os.close(number)


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
