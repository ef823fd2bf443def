"""What a regression case is, and how one ends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsa_doctor.core.finding import Finding, Report

Expectation = Callable[[Report], str]
"""What is wrong with the report that a planted bug ended in; nothing where it is as it has to be."""
Status = Literal["absent", "back", "missed", "broken", "skipped"]
"""Absent and found when planted; there again; planted and not found; the case itself fails; not for this machine."""


class NotForThisMachineError(Exception):
    """A case, or a plant, needs what this machine lacks; one sentence says what."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """One way to put the bug back into the code that ships, and what has to be said of it.

    command: prepares what it needs in an empty folder, and gives the words after `nsa-doctor`. Code that has to be
    faulty in the process that examines it is made so by the factory that `--subject` names.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    expected: Expectation


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bug. `reproduce` runs the code that ships and raises AssertionError when the bug is back.

    unplanted: why no check can name it, of a bug of the doctor itself; any other case has a plant.
    """

    doc: str | None
    reproduce: Callable[[], None]
    plants: tuple[Plant, ...] = ()
    unplanted: str = ""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A planted bug as the doctor saw it; `complaint` says what it should have seen, nothing where it saw it."""

    name: str
    command: str
    findings: tuple[Finding, ...] = ()
    decision: str = ""
    complaint: str = ""
    skipped: str = ""


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """How one case ended; `reason` says why it is not `absent`."""

    id: str
    status: Status
    reason: str = ""
    sights: tuple[Sight, ...] = ()
    seconds: float = 0.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CaseOutcome":
        """Read what `dataclasses.asdict` and JSON made of an CaseOutcome."""
        sights = (
            Sight(**{**each, "findings": tuple(Finding.from_json(found) for found in each["findings"])})
            for each in data["sights"]
        )
        return cls(**{**data, "sights": tuple(sights)})
