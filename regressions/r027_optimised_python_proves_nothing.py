"""r027 optimised-python-proves-nothing

Reported: found in a review of this project.
Symptom: under PYTHONOPTIMIZE=1 every regression case passes, whether its bug is back or not; under PYTHONOPTIMIZE=2
    `nsa-doctor run` ends with "the doctor itself broke: a check's docstring must start with 'CODE some-name'".
Cause: the first drops assertions, and a case's reproduce() says with them that a bug is back; the second drops
    docstrings too, and a check's is its manual. Established by running a case that cannot pass. Now cases run in
    processes without the variable, and a docstring that is gone is read from the source.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import os
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
_RUN_IT = """
from pathlib import Path
from nsa_doctor.cases.catalogue import Card
from nsa_doctor.cases.running import CasesRequest, run_cases

told = dict.fromkeys(("reported", "symptom", "cause", "check"), "")
card = Card(id="r999", name="impossible", module="r999_impossible", path=Path("r999_impossible.py"), **told)
print(run_cases(CasesRequest(cards=(card,)))[0].status)
"""
_READ_ALL = (
    "from nsa_doctor import registry; print(all(registry.load(code).manual.fix for code in ('FWD201', 'TRN201')))"
)


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "r999_impossible.py").write_text(_IMPOSSIBLE, encoding="utf-8")
        status = _optimised("1", _RUN_IT, place)
        assert status == "back", f"a case that cannot pass is {status} under PYTHONOPTIMIZE=1"
        is_read = _optimised("2", _READ_ALL, place)
        assert is_read == "True", f"manuals under PYTHONOPTIMIZE=2: {is_read}"


def _optimised(level: str, program: str, place: str) -> str:
    """What a program prints last, or complains of last."""
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONOPTIMIZE": level, "PYTHONPATH": os.pathsep.join([place, *sys.path])},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
