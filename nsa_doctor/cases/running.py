"""Runs cases, each in a process of its own that is ended when it takes too long."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.cases.catalogue import Card
from nsa_doctor.cases.fork_server import CAN_FORK, Started, Starter
from nsa_doctor.cases.record import CaseOutcome

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


def run_cases(
    request: CasesRequest, listen: Listener = lambda told, done, total: None, starter: Starter | None = None
) -> list[CaseOutcome]:
    """How each case ended, in the order asked for; a KeyboardInterrupt ends them all."""
    children: list[Started] = []
    ended: dict[str, CaseOutcome] = {}
    starting = nullcontext(starter) if starter else Starter()
    with starting as started, ThreadPoolExecutor(request.jobs) as pool:
        waiting = {pool.submit(_run, card, request, started, children): card for card in request.cards}
        try:
            for answer in as_completed(waiting):
                outcome = answer.result()
                ended[outcome.id] = outcome
                listen(f"{outcome.id} {waiting[answer].name}: {outcome.status}", len(ended), len(waiting))
        except KeyboardInterrupt:
            for future in waiting:
                future.cancel()
            for child in children:
                child.end()
            raise
    return [ended[card.id] for card in request.cards]


def _run(card: Card, request: CasesRequest, starter: Starter, children: list[Started]) -> CaseOutcome:
    at_a_time = max(1, request.jobs // len(request.cards)) if CAN_FORK else 1
    with tempfile.TemporaryDirectory(prefix="nsa-doctor-") as place:
        answer, errors = Path(place) / "answer.json", Path(place) / "errors.txt"
        errors.touch()
        child = starter.start((card.module, str(answer), str(at_a_time)), errors)
        children.append(child)
        try:
            code = child.wait(request.seconds)
        finally:
            child.end()
        if code is None:
            return CaseOutcome(id=card.id, status="broken", reason=f"it did not end within {request.seconds:g} s")
        if answer.exists():
            return CaseOutcome.from_json(json.loads(answer.read_text(encoding="utf-8")))
        told = next(_last_lines(errors.read_text(encoding="utf-8", errors="replace").splitlines()), "")
        return CaseOutcome(id=card.id, status="broken", reason=f"its process ended with code {code}: {told}")


def _last_lines(lines: Sequence[str]) -> Iterator[str]:
    return (line.strip()[:_LONGEST_SENTENCE] for line in reversed(lines) if line.strip())
