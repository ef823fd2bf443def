"""How often the doctor itself is right, as measured on planted bugs and healthy models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True)
class Rate:
    """So many of so many, with the 95 % interval of the rate behind it in per cent; `measured` by itself says how."""

    hits: int
    of: int
    low: float
    high: float
    measured: str = ""

    @property
    def percent(self) -> float:
        """The rate itself."""
        return 100 * self.hits / self.of


@dataclass(frozen=True)
class OwnScore:
    """`corpus` says what the doctor was tried on, `commit`, `version` and `date` which doctor, and when.

    `families` hold the recall of each family of checks: known bugs of an illness that it has a code for, found.
    `unseen` is that of real bugs, before anything was mended by them; docs/benchmarks.md lists them.
    """

    commit: str
    corpus: str
    recall: Rate
    false_alarms: Rate
    version: str = ""
    date: str = ""
    families: Mapping[str, Rate] = field(default_factory=dict)
    unseen: Rate | None = None

    @property
    def doctor(self) -> str:
        """Which doctor was measured."""
        return ", ".join(part for part in (self.version, f"commit {self.commit}") if part)


def own_score() -> OwnScore:
    """What score.json, which ships with the doctor and which `make recall` writes, says."""
    record = json.loads(files("nsa_doctor.core").joinpath("score.json").read_text(encoding="utf-8"))
    recall, alarms = (_rate(**record[name]) for name in ("recall", "false_alarms"))
    families = {family: _rate(**rate) for family, rate in record.get("families", {}).items()}
    origin = {name: record.get(name, "") for name in ("version", "date")}
    unseen = _rate(**record["unseen"]) if "unseen" in record else None
    return OwnScore(record["commit"], record["corpus"], recall, alarms, **origin, families=families, unseen=unseen)


def _rate(hits: int, of: int, wilson_95: tuple[float, float], measured: str = "") -> Rate:
    return Rate(hits, of, 100 * wilson_95[0], 100 * wilson_95[1], measured)
