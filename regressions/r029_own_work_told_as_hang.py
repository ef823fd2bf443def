"""r029 own-work-told-as-hang

Reported: found by a test of this project that failed on a busy machine.
Symptom: `nsa-doctor run --timeout 1` names a call that does not return and, after it, a second one in a check whose
    calls all return: the finding has no line of the subject, and says that no answer came within 0.25 s.
Cause: two. What a check did before its first call, imports most of all, was counted as the subject's time. And once a
    call had hung, others were given a quarter of the time that the user allows: of 60 s that leaves 15, of 1 s less
    than a new process needs while others are at work. Established by a limit of 0.35 s on two busy cores, where every
    run reported two hangs. Now a child that is late is looked at first: seen outside the subject it goes on; and after
    a hang calls have five seconds, four times the slowest that returned, or all that the user allows.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import json
import os
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

from nsa_doctor.cases.record import Case, NotForThisMachineError
from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core.check import Check
from nsa_doctor.isolation.start import Children

_ALLOWED, _TAKES = 0.4, 1.2  # seconds: of a call, and of what the doctor does before it
_LAYER = "from torch import nn\n\ndef make():\n    return nn.Linear(8, 8)\n"
_LOAD, _LATE = registry.load, set[int]()


def slow_load(code: str) -> Check:
    """Takes its time, once in every process."""
    if os.getpid() not in _LATE:
        _LATE.add(os.getpid())
        time.sleep(_TAKES)
    return _LOAD(code)


slow_load.__code__ = slow_load.__code__.replace(co_filename=str(registry.__file__))  # seen where it stands in for load


def reproduce() -> None:
    if not Children.are_forked:
        raise NotForThisMachineError("it needs children that are forks, which a CUDA build of torch forbids")
    with tempfile.TemporaryDirectory() as place, chdir(place), patch.object(registry, "load", slow_load):
        output = Path(place) / "report.json"
        Path("r029_layer.py").write_text(_LAYER, encoding="utf-8")
        words = ["--subject", "r029_layer:make", "--input", "embeddings", "--width", "8", "--select", "FWD206"]
        serve(["run", *words, "--jobs", "1", "--timeout", str(_ALLOWED), "--output", str(output), "--quiet"])
        report = json.loads(output.read_text(encoding="utf-8"))
    ends = [(result["code"], result["verdict"]) for result in report["results"]]
    assert ends == [("FWD206", "PASS")], f"a sound layer ends in {ends}"


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
