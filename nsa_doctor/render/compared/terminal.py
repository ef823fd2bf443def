"""A comparison for a terminal: what became of each finding, then the outcome in one sentence."""

from collections.abc import Iterator
from textwrap import wrap

from nsa_doctor.core.comparison import Comparison
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import escaped, from_here, short_number

_WIDTH, _MOST, _LONGEST = 80, 50, 2000


def render(comparison: Comparison) -> str:
    """The comparison as text, 80 columns wide where it is prose."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"{_shown(comparison.subject)}: {_shown(comparison.new_name)} against {_shown(comparison.old_name)}"
    for title, found in comparison.sections():
        if found:
            yield f"\n{title}"
        for finding in found[:_MOST]:
            yield from _finding(finding, with_command=title == "New")
        if len(found) > _MOST:
            yield f"  and {len(found) - _MOST} more"
    if comparison.slower:
        yield "\nSlower or larger"
    for each in comparison.slower[:_MOST]:
        yield f"  {each.what}: {each.after}, was {each.before} ({short_number(each.ratio, 3)} times)"
    if comparison.unanswered:
        yield "\nPassed before, and without an answer now"
        yield from wrap(
            ", ".join(map(_shown, comparison.unanswered[:_MOST])), _WIDTH, initial_indent="  ", subsequent_indent="  "
        )
    yield ""
    for note in (*comparison.remarks, *comparison.notes):
        yield from wrap(f"note: {_shown(note)}", _WIDTH)
    yield f"{comparison.outcome.value}: {comparison.verdicts}; findings: {comparison.counts}"


def _finding(finding: Finding, *, with_command: bool) -> Iterator[str]:
    yield from wrap(_shown(f"{finding.code} {finding.message}"), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    place = " at ".join(part for part in (finding.where.module_text, from_here(finding.where.line_text)) if part)
    if place:
        yield _shown(f"    {place}")
    if with_command and finding.repro:
        yield _shown(f"    {finding.repro}")


def _shown(text: str) -> str:
    """Inert, and not endless."""
    return escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
