"""How often the doctor itself is right, as measured on planted bugs and healthy models."""

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Rate:
    """So many of so many, with the 95 % interval of the rate behind it in per cent."""

    hits: int
    of: int
    low: float
    high: float

    @property
    def percent(self) -> float:
        """The rate itself."""
        return 100 * self.hits / self.of


@dataclass(frozen=True)
class OwnScore:
    """`corpus` says what the doctor was tried on, `commit` which doctor."""

    commit: str
    corpus: str
    recall: Rate
    false_alarms: Rate


def own_score() -> OwnScore:
    """What score.json, which ships with the doctor, says."""
    record = json.loads(files("nsa_doctor.render").joinpath("score.json").read_text(encoding="utf-8"))
    recall, alarms = (_rate(**record[name]) for name in ("recall", "false_alarms"))
    return OwnScore(record["commit"], record["corpus"], recall, alarms)


def _rate(hits: int, of: int, wilson_95: tuple[float, float]) -> Rate:
    return Rate(hits, of, 100 * wilson_95[0], 100 * wilson_95[1])
