"""r025 signals-stay-ignored

Reported: found in the tests of this project: a test that delivered a report in its own process changed those after it.
Symptom: once nsa-doctor was called from pytest or a notebook, Ctrl-C, SIGTERM and SIGHUP do nothing any more, there and
    in every process started later; called from another thread than the main one, the delivery raises.
Cause: a report is written with signals ignored, so that it is written whole, and nothing put them back: the command
    line ends there. A signal that is ignored is inherited by child processes, and signals can be set in the main
    thread alone. Established by asking both, this process and a child of it, after each command. Now
    nsa_doctor.cli.main.serve puts back what it found; the command `nsa-doctor` itself goes on ignoring them until it
    has exited.
Check: none. The bug is the doctor's own; what it examines cannot show it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from nsa_doctor.cases.record import Case

_SECONDS = 60
_PROGRAM = """
import json, signal, subprocess, sys, threading
from nsa_doctor.cli.main import serve
from nsa_doctor.core.own_nsa import let_ours_win

let_ours_win()
STOPPING = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
for name, handler in STOPPING.items():
    signal.signal(getattr(signal, name), handler)
words = ["watch", sys.argv[1], "--quiet", "--format", "json", "--output", sys.argv[1] + ".report"]
codes = [serve(words)]
changed = [name for name, handler in STOPPING.items() if signal.getsignal(getattr(signal, name)) is not handler]
line = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
child = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True).stdout.strip()
thread = threading.Thread(target=lambda: codes.append(serve(words)))
thread.start()
thread.join()
print(json.dumps({"codes": codes, "changed": changed, "child": child}))
"""


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log.jsonl"
        lines = [{"ts": 1.7e9 + step, "step": step, "loss": 5.0 - step / 100} for step in range(1, 9)]
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        command = [sys.executable, "-c", _PROGRAM, str(log)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
    assert answer.returncode == 0, answer.stderr
    answered = json.loads(answer.stdout.splitlines()[-1])
    assert answered["changed"] == [], f"a delivered report leaves {', '.join(answered['changed'])} changed"
    assert answered["child"] == "False", "a process started after a report ignores Ctrl-C"
    assert set(answered["codes"]) <= {0, 1, 3}, f"in the main thread and in another the codes are {answered['codes']}"


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    unplanted="a bug of the doctor's own, which nothing that it examines can show",
)
