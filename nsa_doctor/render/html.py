"""A report as one page: nothing is loaded, nothing runs, and it reads on a phone, on paper, in light and in dark."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Decision, Report
from nsa_doctor.core.own_score import own_score
from nsa_doctor.render import markdown
from nsa_doctor.render.cards import cards, tracebacks
from nsa_doctor.render.check_list import families, missing, share_failed, tally
from nsa_doctor.render.html_text import breakable, command_words, facts, finished, lines, prose, short, whole
from nsa_doctor.render.pictures.gates import gates_picture
from nsa_doctor.render.pictures.growth import growth_picture
from nsa_doctor.render.pictures.picture import Picture
from nsa_doctor.render.pictures.sweep import sweep_picture
from nsa_doctor.render.pictures.timeline import timeline_picture
from nsa_doctor.render.power import power_texts
from nsa_doctor.render.proof import share, terms, uncounted, unnoticed
from nsa_doctor.render.reproduce import command_line
from nsa_doctor.render.subject_rows import environment_facts, subject_facts
from nsa_doctor.render.summary import conditions, grouped
from nsa_doctor.render.why import lead, reasons

_PAGE = Path(__file__).with_name("page")
_KINDS = {Decision.GO: "go", Decision.NO_GO: "no-go", Decision.UNKNOWN: "unknown"}
_PICTURES: Sequence[tuple[str, Callable[[Report], Picture | None]]] = (
    ("the sweep", sweep_picture),
    ("the gates", gates_picture),
    ("time and memory", growth_picture),
    ("the training run", timeline_picture),
)


def render(report: Report, *, excerpts: bool = True) -> str:
    """The report as HTML; `excerpts` shows source around each finding, where the file can be read here and now."""
    pictures, not_drawn = _pictures(report)
    return page_templates().get_template("page.html").render(
        style=page_style(),
        report=report,
        kind=_KINDS[report.decision],
        title=f"{report.decision.value}: {short(str(report.subject.get('name', '')))}",
        lead=lead(report),
        reasons=list(reasons(report)),
        tally=list(tally(report)),
        share_failed=share_failed(report),
        subject=list(subject_facts(report)),
        configuration=list(facts(_configuration(report))),
        cards=cards(report, excerpts=excerpts),
        grouped=grouped(report),
        tracebacks=list(tracebacks(report)),
        missing=list(missing(report)),
        pictures=pictures,
        not_drawn=not_drawn,
        families=list(families(report)),
        environment=list(environment_facts(report)),
        short_environment=conditions(report),
        policy_verdict=report.verdict,
        power=list(power_texts(report.verdict.power)) if report.verdict and report.verdict.power else [],
        proof=_proof(report),
        score=own_score(),
        again=command_line(report),
        markdown=markdown.render(report),
    )  # fmt: skip


def page_style() -> Markup:
    """What every page of ours looks like."""
    return Markup((_PAGE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 (a file of ours)


@cache
def page_templates() -> jinja2.Environment:
    """Where every value is made inert on its way into the page, whatever the template says."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finished,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {
        "lines": lines,
        "breakable": breakable,
        "prose": prose,
        "command": command_words,
        "short": short,
        "whole": whole,
    }
    environment.filters.update(own, quoted=partial(quote, safe=""))
    return environment


def _configuration(report: Report) -> Mapping[str, Any]:
    found = report.subject.get("identity", {}).get("configuration")
    return found if isinstance(found, Mapping) else {}


def _proof(report: Report) -> Mapping[str, Any] | None:
    if report.proof is None:
        return None
    sentences = [said for said in (share(report.proof), uncounted(report.proof), terms(report.proof)) if said]
    return {"sentences": sentences, "unnoticed": list(unnoticed(report.proof))}


def _pictures(report: Report) -> tuple[list[Picture], list[str]]:
    """What can be drawn, and a sentence for what cannot: a verdict must not be lost for want of a picture."""
    drawn, failed = [], []
    for name, draw in _PICTURES:
        picture = attempt(partial(draw, report))
        if isinstance(picture, Caught):
            if isinstance(picture.error, (KeyboardInterrupt, SystemExit)):
                raise picture.error
            failed.append(f"The picture of {name} could not be drawn: {picture.sentence}.")
        elif picture is not None:
            drawn.append(picture)
    return drawn, failed
