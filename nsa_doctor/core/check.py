"""What a check is: a manual, a judge, and a planted bug that proves it can fail."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from textwrap import dedent
from typing import Any, Literal

from nsa_doctor.core.finding import Finding, Note

Profile = Literal["smoke", "quick", "full"]
FIRST_VERSION = "0.1.0"
PROFILES: tuple[Profile, ...] = ("smoke", "quick", "full")
Kind = Literal["module", "function", "checkpoint", "run", "data"]
# What has to be mended first has the least number. A check of a family says nothing unless it comes earlier or later:
#   100  what must not be opened, or cannot be: files, software, routing
#   200  calls that do not return or raise, and the writes that make backward raise
#   300  values that are not finite
#   400  outputs, from what makes every comparison void to ever finer differences
#   500  gradients, gates, decoding
#   700  time and memory
#   780  batches
#   800  training runs: what ended them or stands still, then causes before what follows from them
#   900  families that are not known here
_USUAL_PRIORITY = {
    **{"CKP": 110, "ENV": 120, "NAN": 300, "SEL": 480, "FWD": 490, "FUN": 490, "GRD": 500, "GAT": 600, "DEC": 650},
    **{"HNG": 700, "PRF": 750, "DAT": 780, "DST": 850, "TRN": 860},
}
_LAST_PRIORITY = 900


class Command(StrEnum):
    """A command beside `run` that takes the checks which declare it in `commands`."""

    ANOMALY = "anomaly"
    """Looks into backward, at given lengths."""
    THROUGHPUT = "throughput"
    """Times a subject that these checks have found correct."""


@dataclass(frozen=True, kw_only=True)
class Manual:
    """A check's docstring: `CODE some-name`, then `Detects:`, `Matters:` and `Fix:`.

    `example`, if there is one, is the block that follows them: code as it was written, faulty first, then correct.
    """

    code: str
    name: str
    detects: str
    matters: str
    fix: str
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `run` yields facts; `planted` makes the subject faulty; `needs` names the seams it cannot do without.

    `examines` is the kind of thing it is about, and so what both are given: a `Subject`, a `FunctionSubject`, a
    `CheckpointSubject`, a `RunSubject`, a `DataSubject`.
    No check of another kind is part of an examination.

    A check whose subject may hang or kill the process sets `isolate`; it is then run in a child process. `profile` is
    the shortest profile it is part of. When a check in `blocked_by` failed, this one could only repeat it and is
    skipped; a finding in the same module as one of a check in `explained_by` has the same cause and is reported there.

    What the framework does with a check is declared too, in values of which the framework has a list each:
    `priority` is how early its findings are reported (the family's where none is given), `answers` the facts of the
    framework that bear its code (`facts.Fact`), `explains` the errors of torch whose cause its findings locate
    (`torch_errors.TorchError`), `fuzzed` the properties of `nsa-doctor fuzz` that bear its code (`facts.Violation`),
    `commands` the commands beside `run` that it is part of (`Command`), and `unless` what a subject may be declared to
    be that means what the check looks for (`declared.Declaration`): it does not apply then. A check that is `telling`
    comes first, and gets most of the time where calls are so slow that there is none for all (`pace.Pace`).

    `since` is the version of its package that it came with.
    """

    doc: str | None
    run: Callable[[Any], Iterator[Finding | Note]]
    planted: Callable[[Any], Any]
    needs: tuple[str, ...] = ()
    isolate: bool = False
    profile: Profile = "quick"
    blocked_by: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    examines: Kind = "module"
    priority: int | None = None
    answers: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    fuzzed: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    telling: bool = False
    since: str = FIRST_VERSION

    @property
    def manual(self) -> Manual:
        """The docstring, read."""
        return parse_manual(self.doc)


def usual_priority(code: str) -> int:
    """The priority of a check that declares none: its family's, the last for a family that is not known."""
    return _USUAL_PRIORITY.get(code[:3], _LAST_PRIORITY)


def parse_manual(doc: str | None) -> Manual:
    """Read a check's docstring; raises ValueError saying which part is missing or malformed."""
    lines = (doc or "").strip().splitlines()
    title = _TITLE.fullmatch(lines[0].strip()) if lines else None
    if title is None:
        raise ValueError(f"a check's docstring must start with 'CODE some-name', got {lines[0] if lines else ''!r}")
    body, *example = _EXAMPLE.split("\n".join(lines[1:]), maxsplit=1)
    parts = {found["part"]: " ".join(found["text"].split()) for found in _PART.finditer(body)}
    if list(parts) != ["Detects", "Matters", "Fix"] or not all(parts.values()):
        raise ValueError(f"{title['code']}: the docstring must have Detects, Matters and Fix, in this order")
    if example and not example[0].strip():
        raise ValueError(f"{title['code']}: the docstring must have code below its Example")
    return Manual(
        code=title["code"],
        name=title["name"],
        detects=parts["Detects"],
        matters=parts["Matters"],
        fix=parts["Fix"],
        example=dedent("".join(example)).strip("\n"),
    )


_TITLE = re.compile(r"(?P<code>[A-Z]{3}\d{3}) (?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)")
_EXAMPLE = re.compile(r"^Example:[ \t]*(?:\n|\Z)", re.MULTILINE)
_PART = re.compile(r"^(?P<part>[A-Z][a-z]+): (?P<text>.+?)(?=^[A-Z][a-z]+: |\Z)", re.MULTILINE | re.DOTALL)
