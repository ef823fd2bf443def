"""Every format a report can be rendered in: the module that does it, and the file names that ask for it."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.core.finding import Report


@dataclass(frozen=True)
class Format:
    """`module.render(report)` is the text; a file whose name ends like one of `endings` is meant for it."""

    module: str
    endings: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "terminal": Format("nsa_doctor.render.terminal", (".txt",)),
    "json": Format("nsa_doctor.render.json", (".json",)),
    "md": Format("nsa_doctor.render.markdown", (".md", ".markdown")),
    "junit": Format("nsa_doctor.render.junit", (".xml",)),
    "sarif": Format("nsa_doctor.render.sarif", (".sarif", ".sarif.json")),
    "html": Format("nsa_doctor.render.html", (".html", ".htm")),
    "github": Format("nsa_doctor.render.github"),
}


def format_of(path: Path) -> str | None:
    """What the file's name asks for; the longest ending counts."""
    endings = {ending: name for name, form in FORMATS.items() for ending in form.endings}
    fitting = [ending for ending in endings if path.name.lower().endswith(ending)]
    return endings[max(fitting, key=len)] if fitting else None


def render_as(report: Report, form: str) -> str:
    """The report in one of FORMATS."""
    text = importlib.import_module(FORMATS[form].module).render(report)
    assert isinstance(text, str)
    return text
