"""r027 optimised-python-proves-nothing

Reported: found in a review of this project.
Symptom: under PYTHONOPTIMIZE=1 every regression case passes, whether its bug is back or not; under PYTHONOPTIMIZE=2
    `nsa-doctor run` ends with "internal error: a check's docstring must start with 'CODE some-name'".
Cause: the first drops assertions, and a case's reproduce() says with them that a bug is back; the second drops
    docstrings too, and a check's is its manual. Established by running a case that cannot pass. Now a
    case says that it cannot be run so, and a docstring that is gone is read from the source.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from nsa_doctor.cases.record import Case

_SECONDS = 50
_IMPOSSIBLE = """
from nsa_doctor.cases.record import Case

def reproduce():
    assert False, "it is back"

CASE = Case(doc="", reproduce=reproduce, unplanted="it is made up")
"""
_RUN_IT = "from nsa_doctor.cases.worker_main import run_case; print(run_case('r999_impossible').status)"
_READ_ALL = (
    "from nsa_doctor.core import registry; print(all(registry.load(each).manual.fix for each in ('CKP101', 'TRN201')))"
)


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "r999_impossible.py").write_text(_IMPOSSIBLE, encoding="utf-8")
        status = _optimised("-O", _RUN_IT, place)
        assert status == "broken", f"a case that cannot pass is {status} where assertions are dropped"
        is_read = _optimised("-OO", _READ_ALL, place)
        assert is_read == "True", f"manuals where docstrings are dropped: {is_read}"


def _optimised(option: str, program: str, place: str) -> str:
    """What a program prints last, or complains of last."""
    command = [sys.executable, option, "-c", program]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
    return (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
