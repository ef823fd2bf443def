"""Which subject exactly, and on what it was examined, as rows of a page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.finding import Report
from nsa_doctor.render.html_text import facts, plain

_IDENTITY_FACTS = (
    "configuration",
    "configuration_hash",
    "version",
    "commit",
    "sources",
    "made_of",
    "flags",
    "file",
    "packages",
)

_SUBJECT_FACTS = ("name", "description", "input", "width", "spec", "dtype", "options", "identity", "files")


@dataclass(frozen=True)
class Fact:
    """A name and what is known; `is_exact` for what a reader compares sign by sign."""

    label: str
    text: str
    is_exact: bool = False


def subject_facts(report: Report) -> Iterator[Fact]:
    """What a verdict is bound to."""
    subject, environment = report.subject, report.environment
    identity: Mapping[str, Any] = subject.get("identity") or {}
    unit = "ids" if subject.get("input") == "tokens" else "values"
    width = f" of {plain(subject['width'])} {unit}" if subject.get("width") else ""
    device = ", ".join(plain(environment[key]) for key in ("device", "device_name") if environment.get(key))
    rows = [
        Fact("Name", plain(subject.get("name", "")), is_exact=True),
        Fact("What it is", plain(subject.get("description", ""))),
        Fact("Input", f"{plain(subject['input'])}{width}" if subject.get("input") else ""),
        Fact("Declared", ", ".join(plain(word) for word in subject.get("spec", ()))),
        Fact("Hash of configuration", plain(identity.get("configuration_hash", "")), is_exact=True),
        Fact("Version", plain(identity.get("version", ""))),
        Fact("Commit", plain(identity.get("commit", "")), is_exact=True),
        Fact("Hash of sources", plain(identity.get("sources", "")), is_exact=True),
        Fact("Made of", plain(identity.get("made_of", "")), is_exact=True),
        Fact("File", plain(identity.get("file", "")), is_exact=True),
        Fact("Dtype", plain(subject.get("dtype", ""))),
        Fact("Device", device),
        Fact(
            "Flags",
            plain(identity.get("flags") or "") or ("none set" if identity else ""),
            is_exact=bool(identity.get("flags")),
        ),
        Fact("Seed", plain(report.options.get("seed", ""))),
        Fact("Profile", plain(report.options.get("profile", "") or "")),
        Fact("Run", plain(report.run.get("folder", "")), is_exact=True),
    ]
    others = [Fact(name.capitalize(), text) for name, text in facts(subject, *_SUBJECT_FACTS)]
    others += [Fact(name.capitalize(), text) for name, text in facts(identity, *_IDENTITY_FACTS)]
    yield from (row for row in (*rows, *others) if row.text)


def environment_facts(report: Report) -> Iterator[tuple[str, str]]:
    """Software and hardware, then how it was asked."""
    yield from facts(report.environment)
    yield "command", report.command
    yield from ((f"option {name}", text) for name, text in facts(report.options, "seed", "profile"))
    yield "time taken", f"{report.seconds:.1f} s"
