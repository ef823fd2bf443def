"""Runs cases, each in a process of its own that is ended when it takes too long."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.cases.catalogue import Card
from nsa_doctor.cases.record import Outcome

_LONGEST_SENTENCE = 300

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class CasesRequest:
    """Which cases to run, in how many processes at a time; one may take `seconds`."""

    cards: tuple[Card, ...]
    jobs: int = 1
    seconds: float = 60.0


def run_cases(request: CasesRequest, listen: Listener = lambda told, done, total: None) -> list[Outcome]:
    """How each case ended, in the order asked for; a KeyboardInterrupt ends them all."""
    children: list[subprocess.Popen[bytes]] = []
    ended: dict[str, Outcome] = {}
    with ThreadPoolExecutor(request.jobs) as pool:
        waiting = {pool.submit(_run, card, request.seconds, children): card for card in request.cards}
        try:
            for answer in as_completed(waiting):
                outcome = answer.result()
                ended[outcome.id] = outcome
                listen(f"{outcome.id} {waiting[answer].name}: {outcome.status}", len(ended), len(waiting))
        except KeyboardInterrupt:
            for future in waiting:
                future.cancel()
            for child in children:
                child.kill()
            raise
    return [ended[card.id] for card in request.cards]


def _run(card: Card, seconds: float, children: list[subprocess.Popen[bytes]]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="nsa-doctor-") as place, tempfile.TemporaryFile() as errors:
        answer = Path(place) / "answer.json"
        child = subprocess.Popen(  # noqa: S603 (our own interpreter)
            [sys.executable, "-m", "nsa_doctor.cases.child", card.module, str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        children.append(child)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            return Outcome(id=card.id, status="broken", reason=f"it did not end within {seconds:g} s")
        finally:
            child.kill()
            child.wait()
        if answer.exists():
            return Outcome.from_json(json.loads(answer.read_text(encoding="utf-8")))
        errors.seek(0)
        told = next(_last_lines(errors.read().decode("utf-8", errors="replace").splitlines()), "")
        return Outcome(id=card.id, status="broken", reason=f"its process ended with code {child.returncode}: {told}")


def _last_lines(lines: Sequence[str]) -> Iterator[str]:
    return (line.strip()[:_LONGEST_SENTENCE] for line in reversed(lines) if line.strip())
