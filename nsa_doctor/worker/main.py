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
from nsa_doctor.isolation.shared_record import SIGHTING, TRAIL, SharedRecord
from nsa_doctor.worker.answer_line import line_of, sendable

if TYPE_CHECKING:
    from nsa_doctor.probes.hooks.stack_sampler import StackSampler
    from nsa_doctor.worker.handlers import RequestHandler

_NOWHERE: dict[str, Any] = {"place": {}}


def main() -> None:
    """Serve requests until the parent closes its pipe."""
    descriptors = tuple(int(word) for word in sys.argv[1:6])
    requests, answers, dump, questions, pages = descriptors
    is_line_recorded = sys.argv[6] == "trailed"
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

        handler: RequestHandler | None = None
        for line in lines:
            request = json.loads(line)
            if handler is None:
                caught = attempt(lambda: _new_bench(send))
                if isinstance(caught, Caught):
                    send({"broke": caught.sentence, "traceback": caught.traceback})
                    return
                handler = caught
                _watch(handler.sampler, questions, pages, is_line_recorded)
            say(line_of(_answering(handler, request)))
    os._exit(0)  # threads a subject left behind must not keep the process alive


def _new_bench(send: Callable[[dict[str, Any]], None]) -> "RequestHandler":
    from nsa_doctor.worker.handlers import RequestHandler  # torch, which takes its time

    send({"event": "started"})
    return RequestHandler(send)


def _watch(sampler: "StackSampler", questions: int, pages: int, is_line_recorded: bool) -> None:
    """Have a thread of its own say where the subject is when the parent asks; `is_line_recorded`: it keeps a record."""
    page = SharedRecord(pages, SIGHTING)

    def tell() -> None:
        while os.read(questions, 1):
            sighting = attempt(lambda: sampler.sight().to_json())
            page.write(_NOWHERE if isinstance(sighting, Caught) else sighting)  # no answer would look like a hang

    threading.Thread(target=tell, daemon=True).start()
    if is_line_recorded:
        from nsa_doctor.probes.hooks.line_recorder import LineRecorder

        LineRecorder(sampler, SharedRecord(pages, TRAIL)).begin()


def _answering(handler: "RequestHandler", request: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    match request["do"]:
        case "load":
            return lambda: handler.load(request)
        case "measure":
            return lambda: {"measured": to_json(handler.measure(Point(**request["point"])))}
        case "diagnose":
            return lambda: {"diagnosed": to_json(handler.diagnose(Point(**request["point"])))}
        case "check":
            return lambda: {"checked": sendable(handler.check(request["code"], request["planted"], request["avoid"]))}
        case "fuzz":
            return lambda: {"fuzzed": handler.fuzz(request["case"])}
        case "time":
            return lambda: {"timed": handler.time(request["length"], request["repeats"])}
        case "time shares":
            return lambda: {"timed": handler.time_shares(request["length"])}
        case "describe machine":
            return lambda: {"machine": handler.describe_machine()}
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
