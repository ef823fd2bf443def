"""A comparison as one page, which loads nothing and runs nothing."""

from nsa_doctor.core import registry
from nsa_doctor.core.comparison import Comparison, Outcome
from nsa_doctor.render.html import page_style, page_templates
from nsa_doctor.render.html_text import short

_KINDS = {Outcome.BETTER: "go", Outcome.NO_WORSE: "go", Outcome.WORSE: "no-go", Outcome.UNKNOWN: "unknown"}
_TONES = {"New": "fail", "Not looked at again": "skip", "Still there": "fail", "Fixed": "pass"}
_MOST = 200


def render(comparison: Comparison) -> str:
    """The comparison as HTML, in the style of a report's page."""
    manuals = registry.manuals()
    sections = [
        {
            "title": title,
            "tone": _TONES[title],
            "left_out": max(0, len(found) - _MOST),
            "findings": [(finding, manuals.get(finding.code)) for finding in found[:_MOST]],
        }
        for title, found in comparison.sections()
        if found
    ]
    return (
        page_templates()
        .get_template("comparison.html")
        .render(
            style=page_style(),
            title=f"{comparison.outcome.value}: {short(comparison.subject)}",
            kind=_KINDS[comparison.outcome],
            comparison=comparison,
            sections=sections,
        )
    )
