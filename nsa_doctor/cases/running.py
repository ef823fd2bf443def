"""Runs cases, each in a process of its own that is ended when it takes too long."""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa_doctor.cases.catalogue import Card
from nsa_doctor.cases.record import CaseOutcome
from nsa_doctor.core.errors import Caught
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import COMPILER
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError
from nsa_doctor.isolation.side_by_side import side_by_side
from nsa_doctor.isolation.worker_process import STARTUP_SECONDS, WorkerProcess

CAN_FORK = hasattr(os, "fork")
REGISTRY = "nsa_doctor.core.registry"  # and with it the manuals of all checks are read
IMPORTED = (
    "nsa.nn",
    "nsa.train.run",
    "nsa_doctor.worker.handlers",
    "nsa_doctor.cases.worker_main",
    "nsa_doctor.cli.main",
    "nsa_doctor.render.reading",
    "nsa_doctor.render.report_format.document",  # these two and the writer of events are imported late
    "nsa_doctor.render.terminal",
    *(("torch.utils.tensorboard",) if importlib.util.find_spec("tensorboard") else ()),
    "nsa_doctor.engine.run",
    "nsa_doctor.artifacts.training_run.watch",
    REGISTRY,
    COMPILER,  # an optimizer's first step would import it
)
ROOM, WARM_ROOM = "nsa_doctor.cases.worker_main", "nsa_doctor.cases.warm_main"
_SPARE_SECONDS = 60.0  # for the end of a case that was late
_LONGEST_SENTENCE = 300

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class CasesRequest:
    """Which cases to run, in how many processes at a time; one may take `seconds`.

    Where there are fewer cases than processes, what a case proves is tried in several at a time.
    """

    cards: tuple[Card, ...]
    jobs: int = 1
    seconds: float = 60.0


def warm_process() -> WorkerProcess:
    """A process that has imported what cases need once it is asked, and forks one process for each case.

    It runs no operation of torch, so that what it forks has no threads or locks of another life.
    """
    return WorkerProcess(WARM_ROOM, is_fresh=True)


def run_cases(
    request: CasesRequest,
    listen: Listener = lambda text, done, total: None,
    warm: WorkerProcess | None = None,
    imported: Sequence[str] = IMPORTED,
) -> list[CaseOutcome]:
    """How each case ended, in the order asked for; a KeyboardInterrupt ends them all.

    They are forked from a `warm` process that has `imported` modules, or have interpreters of their own where there is
    no such thing as a fork.
    """
    names, ended = {card.id: card.name for card in request.cards}, dict[str, CaseOutcome]()

    def keep(outcome: CaseOutcome) -> None:
        ended[outcome.id] = outcome
        listen(f"{outcome.id} {names[outcome.id]}: {outcome.status}", len(ended), len(names))

    asked = {"cases": [(card.id, card.module) for card in request.cards], "jobs": request.jobs}
    asked |= {"seconds": request.seconds, "folder": str(Path.cwd()), "path": sys.path, "imported": list(imported)}
    if not CAN_FORK:
        run_each(asked, keep)
        return [ended[card.id] for card in request.cards]
    timing = {"startup_seconds": STARTUP_SECONDS, "making_seconds": STARTUP_SECONDS + request.seconds}
    hear = lambda event: keep(CaseOutcome.from_json(event["outcome"])) if event["event"] == "outcome" else None  # noqa: E731
    reason = ""
    with nullcontext(warm) if warm else warm_process() as process:
        try:
            process.ask(asked | timing, request.seconds + _SPARE_SECONDS, listen=hear)
        except (WorkerDiedError, WorkerHungError) as failure:
            reason = f"the process that runs the cases gives no answer: {failure}"
    missing = [CaseOutcome(id=name, status="broken", reason=reason) for name in names if name not in ended]
    for outcome in missing:
        keep(outcome)
    return [ended[card.id] for card in request.cards]


def run_each(asked: Mapping[str, Any], keep: Callable[[CaseOutcome], object]) -> None:
    """Run the cases of a request, each in a child of this process; `keep` is given the outcomes as they come."""
    cases, jobs, seconds = asked["cases"], asked["jobs"], asked["seconds"]
    common = {name: asked[name] for name in ("folder", "path")} | {"at_a_time": max(1, jobs // max(1, len(cases)))}
    common |= {"startup_seconds": STARTUP_SECONDS, "making_seconds": seconds}
    requests = [{"module": module, **common} for _, module in cases]
    side_by_side(ROOM, requests, seconds, jobs, lambda number, answer: keep(_outcome(cases[number][0], answer)))


def _outcome(name: str, answer: dict[str, Any] | Caught) -> CaseOutcome:
    if not isinstance(answer, Caught):
        return CaseOutcome.from_json(answer)
    failure = answer.error
    if isinstance(failure, WorkerHungError):
        stack = FrameFilter().of_dump(failure.crash.dump)
        at = f": it is at {stack[0].file}:{stack[0].line} ({stack[0].function})" if stack else ""
        return CaseOutcome(id=name, status="broken", reason=f"it did not end within {failure.seconds:g} s{at}")
    words = failure.crash.last_words if isinstance(failure, WorkerDiedError) else ""
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    sentence = f"{failure}: {last[:_LONGEST_SENTENCE]}" if last else str(failure)
    return CaseOutcome(id=name, status="broken", reason=sentence)
