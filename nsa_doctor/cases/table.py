"""Regression cases as a table on a terminal, with what the doctor saw of each planted bug, and as Markdown."""

import io
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsa_doctor.cases.catalogue import Card
from nsa_doctor.cases.record import CaseOutcome, Sight
from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import escaped, from_here

_WIDTH = 120
_STYLES = {"absent": "green", "back": "bold red", "missed": "bold red", "broken": "bold red", "skipped": "yellow"}


def terminal(cards: Sequence[Card], outcomes: Sequence[CaseOutcome], *, shows_sights: bool, colour: bool) -> str:
    """Id, report, symptom and status of every case; with `shows_sights`, each planted bug as the doctor sees it."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=_WIDTH, force_terminal=colour, force_jupyter=False, no_color=not colour, highlight=False
    )
    if shows_sights:
        for card, outcome in zip(cards, outcomes, strict=True):
            console.print(Text("\n".join(_seen(card, outcome)) + "\n"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("case", "reported", "symptom", "seconds", "status"):
        table.add_column(name, justify="right" if name == "seconds" else "left")
    for card, outcome in zip(cards, outcomes, strict=True):
        status = Text(outcome.status, style=_STYLES[outcome.status])
        table.add_row(f"{card.id} {card.name}", card.reported, card.symptom, f"{outcome.seconds:.1f}", status)
    console.print(table)
    for outcome in outcomes:
        if outcome.reason:
            console.print(Text(f"{outcome.id}: {escaped(from_here(outcome.reason))}"), soft_wrap=True)
    console.print(Text(_summary(outcomes)))
    return stream.getvalue()


def markdown(cards: Iterable[Card]) -> str:
    """The table of regressions/README.md."""
    lines = ["| case | reported | symptom | cause | caught by |", "|---|---|---|---|---|"]
    for card in cards:
        link = f"[{card.id}]({card.path.name}) {card.name}"
        cells = (link, card.reported, card.symptom, card.cause, card.check)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _seen(card: Card, outcome: CaseOutcome) -> Iterable[str]:
    yield f"{card.id} {card.name}: {card.symptom}"
    for sight in outcome.sights:
        yield from (f"  {line}" for line in _sight(sight, registry.manuals()))


def _sight(sight: Sight, manuals: Mapping[str, Manual]) -> Iterable[str]:
    yield f"{sight.name}:"
    if sight.skipped:
        yield f"  not here: {escaped(sight.skipped)}"
        return
    yield f"  $ {escaped(sight.command)}"
    if sight.complaint:
        yield f"  MISSED: {escaped(from_here(sight.complaint))}"
    for finding in sight.findings:
        yield from (f"  {line}" for line in _finding(finding, manuals))
    if not sight.findings:
        yield f"  {sight.decision}"


def _finding(finding: Finding, manuals: Mapping[str, Manual]) -> Iterable[str]:
    yield f"{finding.code} {escaped(from_here(finding.message))}"
    if str(finding.where):
        yield f"  at   {escaped(from_here(str(finding.where)))}"
    if finding.code in manuals:
        yield f"  fix  {manuals[finding.code].fix}"


def _summary(outcomes: Sequence[CaseOutcome]) -> str:
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STYLES}
    counted = [f"{count} {status}" for status, count in counts.items() if count]
    return f"{len(outcomes)} case{'' if len(outcomes) == 1 else 's'}: {', '.join(counted)}"
