"""The room in which a source of batches is opened: a process of its own, where it may hang, print or die."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from nsa_doctor import registry
from nsa_doctor.data.request import DataRequest
from nsa_doctor.data.subject import DataSubject
from nsa_doctor.data.waiting import Caller, TooLate
from nsa_doctor.frames import FrameFilter, top_package
from nsa_doctor.judging import judged
from nsa_doctor.runner import Caught, attempt

TICK_SECONDS = 1.0
_IMPORT_SECONDS = 120.0
_LEAST_IMPORT_SECONDS = 20.0  # a limit for batches is none for libraries

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Answer the request on standard input; what is said goes out line by line, and the answer is the last one."""
    request = json.loads(sys.stdin.buffer.readline())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the source prints is not for the doctor
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lock = threading.Lock()

    def tell(line: dict[str, Any]) -> None:
        with lock:
            out.write(json.dumps(line) + "\n")
            out.flush()

    threading.Thread(target=_tick, args=(tell,), daemon=True).start()
    answer = attempt(lambda: answered(DataRequest(**request), tell))
    if isinstance(answer, Caught):
        answer = {"broke": answer.sentence, "traceback": answer.traceback}
    tell({"answer": answer})
    os._exit(0)  # threads that hang, and what they hold, are left behind


def answered(request: DataRequest, tell: Tell) -> dict[str, Any]:
    """The end of every check and what is known of the source, or how the request cannot be met: `usage`."""
    from nsa.strict import ConfigError
    from nsa_doctor.subject import SubjectUnusableError

    seconds = max(request.seconds or _IMPORT_SECONDS, _LEAST_IMPORT_SECONDS)
    caller = Caller(FrameFilter(top_package(request.spec)))
    subject = caller.call(lambda: subject_of(request), seconds)
    caller.end()
    if isinstance(subject, TooLate):
        return {"usage": f"{request.spec} cannot be imported within {seconds:g} s: it waits at {subject.where}"}
    if isinstance(subject, Caught):
        if isinstance(subject.error, (ConfigError, SubjectUnusableError)):
            return {"usage": f"{'' if request.spec else '--config '}{subject.error}"}
        raise subject.error
    subject = replace(subject, listen=lambda told: tell({"told": told}))
    entries = [entry for code, entry in registry.entries().items() if code in request.codes]
    return {
        "results": [asdict(result) for result in judged(entries, subject)],
        "subject": {"name": subject.name, "description": subject.description, "options": list(request.words)},
        "expected": {
            "seq_len": subject.seq_len,
            "vocab_size": subject.vocab_size,
            "batch_size": subject.batch_size,
            "limit_seconds": subject.limit_seconds,
        },
    }


def subject_of(request: DataRequest) -> DataSubject:
    """The source asked for; raises ConfigError and SubjectUnusableError."""
    from nsa.config import load_config, with_changes
    from nsa_doctor.data.sources import of_config, of_factory

    subject: DataSubject | None = None
    if request.config is not None:
        config = load_config(request.config)
        subject = of_config(with_changes(config, request.changes) if request.changes else config, request.seconds)
    if request.spec is not None:
        subject = of_factory(request.spec, subject)
    assert subject is not None
    told: dict[str, Any] = {
        "targets": request.targets,
        "seq_len": request.seq_len,
        "vocab_size": request.vocab_size,
        "batch_size": request.batch_size,
        "limit_seconds": request.seconds,
    }
    return replace(
        subject,
        num_batches=request.num_batches,
        num_ranks=request.num_ranks,
        options=request.words,
        **{name: value for name, value in told.items() if value is not None},
    )


def _tick(tell: Tell) -> None:
    while True:
        tell({"tick": time.time()})
        time.sleep(TICK_SECONDS)
