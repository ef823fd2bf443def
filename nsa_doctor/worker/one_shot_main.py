"""Where a process that was sent on an errand meets it: it may hang, print or die, and says that it lives."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from nsa_doctor.worker.answer_line import line_of

_TICK_SECONDS = 1.0

Tell = Callable[[str], None]


def serve(answered: Callable[[dict[str, Any], Tell], dict[str, Any]]) -> None:
    """Answer a request, the first word; to the file whose number is the second go lines, and the answer is the last.

    answered: makes the answer of the request, and may tell of what it has done so far.
    """
    request, number = json.loads(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:]
    os.set_inheritable(number, False)
    out = os.fdopen(number, "w", encoding="utf-8")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            out.write(f"{line}\n")
            out.flush()

    def write(line: dict[str, Any]) -> None:
        say(json.dumps(line))

    threading.Thread(target=_tick, args=(write,), daemon=True).start()
    answer = line_of(lambda: answered(request, lambda told: write({"told": told})))
    say(f'{{"answer": {answer}}}')
    os._exit(0)  # threads that hang, and what they hold, are left behind


def _tick(write: Callable[[dict[str, Any]], None]) -> None:
    while True:
        write({"tick": time.time()})
        time.sleep(_TICK_SECONDS)
