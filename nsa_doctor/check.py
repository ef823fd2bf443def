"""What a check is: a manual, a judge, and a planted bug that proves it can fail."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nsa_doctor.finding import Finding, Note

Profile = Literal["smoke", "quick", "full"]
PROFILES: tuple[Profile, ...] = ("smoke", "quick", "full")
Kind = Literal["module", "checkpoint", "run", "data"]


@dataclass(frozen=True, kw_only=True)
class Manual:
    """A check's docstring: `CODE some-name`, then `Detects:`, `Matters:` and `Fix:`."""

    code: str
    name: str
    detects: str
    matters: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `run` yields facts; `planted` makes the subject sick; `needs` names the seams it cannot do without.

    `examines` is the kind of thing it is about, and so what both are given: a `Subject`, a `CheckpointSubject`, a
    `RunSubject`, a `DataSubject`.
    No check of another kind is part of an examination.

    A check whose subject may hang or kill the process sets `isolate`; it is then run in a child process. `profile` is
    the shortest profile it is part of. When a check in `blocked_by` failed, this one could only repeat it and is
    skipped; a finding in the same module as one of a check in `explained_by` has the same cause and is told there.
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

    @property
    def manual(self) -> Manual:
        """The docstring, read."""
        return parse_manual(self.doc)


def parse_manual(doc: str | None) -> Manual:
    """Read a check's docstring; raises ValueError saying which part is missing or malformed."""
    lines = (doc or "").strip().splitlines()
    title = _TITLE.fullmatch(lines[0].strip()) if lines else None
    if title is None:
        raise ValueError(f"a check's docstring must start with 'CODE some-name', got {lines[0] if lines else ''!r}")
    body = "\n".join(lines[1:])
    parts = {found["part"]: " ".join(found["text"].split()) for found in _PART.finditer(body)}
    if list(parts) != ["Detects", "Matters", "Fix"] or not all(parts.values()):
        raise ValueError(f"{title['code']}: the docstring must have Detects, Matters and Fix, in this order")
    return Manual(
        code=title["code"], name=title["name"], detects=parts["Detects"], matters=parts["Matters"], fix=parts["Fix"]
    )


_TITLE = re.compile(r"(?P<code>[A-Z]{3}\d{3}) (?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)")
_PART = re.compile(r"^(?P<part>[A-Z][a-z]+): (?P<text>.+?)(?=^[A-Z][a-z]+: |\Z)", re.MULTILINE | re.DOTALL)
