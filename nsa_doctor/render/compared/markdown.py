"""A comparison for a pull request: a heading, what is new in full, the rest folded."""

from collections.abc import Iterator

from nsa_doctor.core.comparison import Comparison
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import from_here, short_number
from nsa_doctor.render.markdown import MOST_CHARACTERS, fitting
from nsa_doctor.render.markdown_text import code, fenced, text

_MOST = 20


def render(comparison: Comparison) -> str:
    """The comparison as GitHub's Markdown; what does not fit into a comment is left out."""
    kept, _ = fitting(list(_blocks(comparison)), MOST_CHARACTERS)
    return "\n\n".join(kept) + "\n"


def _blocks(comparison: Comparison) -> Iterator[str]:
    yield f"## nsa-doctor: {comparison.outcome.value}"
    yield (
        f"{code(comparison.subject)}: **{comparison.verdicts}** — {comparison.counts} "
        f"({code(comparison.new_name)} against {code(comparison.old_name)})"
    )
    for title, found in comparison.sections():
        if not found:
            continue
        lines = [_line(finding) for finding in found[:_MOST]]
        lines += [f"- and {len(found) - _MOST} more"] if len(found) > _MOST else []
        if title == "New":
            yield f"### {title}\n\n" + "\n".join(lines)
            for finding in found[:_MOST]:
                if finding.repro:
                    yield fenced(finding.repro, "sh")
        else:
            yield _folded(f"{title}: {len(found)}", "\n".join(lines))
    if comparison.slower:
        rows = [
            f"| {text(each.what)} | {text(each.before)} | {text(each.after)} | {short_number(each.ratio, 3)} |"
            for each in comparison.slower[:_MOST]
        ]
        yield "### Slower or larger\n\n" + "\n".join(["| what | before | now | times |", "|---|---|---|---|", *rows])
    if comparison.unanswered:
        yield _folded(
            f"Passed before, and without an answer now: {len(comparison.unanswered)}",
            ", ".join(code(each) for each in comparison.unanswered[:100]),
        )
    notes = [f"- {text(note)}" for note in (*comparison.remarks, *comparison.notes)]
    if notes:
        yield "\n".join(notes)


def _line(finding: Finding) -> str:
    place = " at ".join(code(part) for part in (finding.where.module_text, from_here(finding.where.line_text)) if part)
    return f"- {code(finding.code)} {text(finding.message)}" + (f" ({place})" if place else "")


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
