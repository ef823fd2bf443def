"""The child's side: reads requests, runs the subject, answers; torch is imported here and not in the parent."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Point, to_json
from nsa_doctor.isolation.openmp import wait_without_spinning
from nsa_doctor.isolation.orphans import end_with_parent
from nsa_doctor.isolation.shared_record import SIGHTING, TRAIL, Page
from nsa_doctor.worker.answer_line import line_of, sendable

if TYPE_CHECKING:
    from nsa_doctor.probes.hooks.stack_sampler import Lookout
    from nsa_doctor.worker.handlers import Bench

_NOWHERE: dict[str, Any] = {"place": {}}


def main() -> None:
    """Serve requests until the parent closes its pipe."""
    descriptors = tuple(int(word) for word in sys.argv[1:6])
    requests, answers, dump, questions, pages = descriptors
    is_trailed = sys.argv[6] == "trailed"
    del sys.argv[1:]
    _die_with_parent()
    wait_without_spinning()
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    faulthandler.enable(file=dump, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=dump, all_threads=True, chain=False)

    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "wb", buffering=0) as pipe:

        def send(message: dict[str, Any]) -> None:
            say(json.dumps(message))

        def say(line: str) -> None:
            pipe.write(line.encode() + b"\n")

        bench: Bench | None = None
        for line in lines:
            request = json.loads(line)
            if bench is None:
                caught = attempt(lambda: _new_bench(send))
                if isinstance(caught, Caught):
                    send({"broke": caught.sentence, "traceback": caught.traceback})
                    return
                bench = caught
                _watch(bench.lookout, questions, pages, is_trailed)
            say(line_of(_answering(bench, request)))
    os._exit(0)  # threads a subject left behind must not keep the process alive


def _new_bench(send: Callable[[dict[str, Any]], None]) -> "Bench":
    from nsa_doctor.worker.handlers import Bench  # torch, which takes its time

    send({"event": "started"})
    return Bench(send)


def _watch(lookout: "Lookout", questions: int, pages: int, is_trailed: bool) -> None:
    """Have a thread of its own say where the subject is when the parent asks; `is_trailed` writes every line down."""
    page = Page(pages, SIGHTING)

    def tell() -> None:
        while os.read(questions, 1):
            sighting = attempt(lambda: lookout.sight().to_json())
            page.write(_NOWHERE if isinstance(sighting, Caught) else sighting)  # no answer would look like a hang

    threading.Thread(target=tell, daemon=True).start()
    if is_trailed:
        from nsa_doctor.probes.hooks.line_recorder import Trail

        Trail(lookout, Page(pages, TRAIL)).begin()


def _answering(bench: "Bench", request: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    match request["do"]:
        case "load":
            return lambda: bench.load(request)
        case "measure":
            return lambda: {"measured": to_json(bench.measure(Point(**request["point"])))}
        case "diagnose":
            return lambda: {"diagnosed": to_json(bench.diagnose(Point(**request["point"])))}
        case "check":
            return lambda: {"checked": sendable(bench.check(request["code"], request["planted"], request["avoid"]))}
        case "fuzz":
            return lambda: {"fuzzed": bench.fuzz(request["case"])}
        case "time":
            return lambda: {"timed": bench.time(request["length"], request["repeats"])}
        case "time shares":
            return lambda: {"timed": bench.time_shares(request["length"])}
        case "describe machine":
            return lambda: {"machine": bench.describe_machine()}
        case other:
            raise ValueError(f"request must be one that the laboratory makes, got {other!r}")


def _die_with_parent() -> None:
    """An orphan would burn a core for ever: ask the kernel, and look for a new parent where it cannot be asked."""
    parent = os.getppid()
    if not end_with_parent():
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
        return
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpid(), signal.SIGKILL)
