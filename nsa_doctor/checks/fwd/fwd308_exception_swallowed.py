"""FWD308 exception-swallowed

Detects: an exception in the subject's own code that it catches and that changes what comes out: another output than in
calls that raise none, many times the operations, or a slip (TypeError, NameError, sizes that do not fit) that a clause
for every exception hides. Other ways round, and warnings and counters that tell of one, are notes.
Matters: the path that was measured is not the path that runs, and nothing says so.
Fix: look at the line that raises; catch the one exception that is meant, and let every other end the call.

Example:
    # faulty
    try:
        return fused_attention(q, k, v, windw=self.window)
    except Exception:
        return attention(q, k, v)  # and nobody learns that the fused path has never run
    # correct
    return fused_attention(q, k, v, window=self.window) if q.is_cuda else attention(q, k, v, window=self.window)
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.swallowing import Watched, watch_calls
from nsa_doctor.probes.hooks.swallowed import Swallowed
from nsa_doctor.subject.contract import Subject

_MOST_NOTES = 3


def run(subject: Subject) -> Iterator[Finding | Note]:
    watched = watch_calls(subject)
    notes: list[Note] = []
    for site, swallowed in watched.sites().items():
        words = f"{_described(swallowed)}, {watched.when(site)}"
        consequence = watched.consequence(site)
        if consequence is not None:
            yield _finding(subject, swallowed, f"{words}: {consequence.call.words} {consequence.words}")
        elif swallowed.is_slip(subject.packages) and not watched.is_of_building(site):
            yield _finding(subject, swallowed, f"{words}: nobody means to raise it, and the clause hides every other")
        elif not swallowed.is_a_question:
            notes.append(Note(message=words, where=swallowed.caught))
    yield from [*notes, *_signs(watched)][:_MOST_NOTES]


def _described(swallowed: Swallowed) -> str:
    raised = f"{Path(swallowed.raised.file).name}:{swallowed.raised.line}"
    error = f"{swallowed.kind.__name__} ({swallowed.message})"
    return f"exception swallowed: {error}, raised at {raised}, is caught by `{swallowed.catches}`"


def _signs(watched: Watched) -> Iterator[Note]:
    for file, line, text in sorted(watched.signs.warned):
        yield Note(message=f"it warns of another path: {text}", where=Place(file=file, line=line))
    for name, count in watched.signs.risen.items():
        yield Note(message=f"the counter {name} rises by {count} in {len(watched.calls)} ordinary calls")


def _finding(subject: Subject, swallowed: Swallowed, message: str) -> Finding:
    return Finding(
        message=message,
        where=swallowed.caught,
        evidence={"exception": swallowed.kind.__name__, "catches": swallowed.catches, "line": swallowed.raised.line},
        repro=command_for(subject, "FWD308"),
    )


def planted(subject: Subject) -> Subject:
    def falls_back(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        with suppress(Exception):
            return output.scaled(1.0)  # type: ignore[attr-defined]
        return output

    return replace(subject, forward=falls_back)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206"), priority=402)
