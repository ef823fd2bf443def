"""What came of trying one case."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from nsa_doctor.core.facts import Violation
from nsa_doctor.core.finding import Scalar
from nsa_doctor.core.measurement import Place


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One property that does not hold: its kind, what was seen, where, and the least that tells it from others.

    `name` says which property it is where one kind stands for several.
    """

    violation: Violation
    message: str
    where: Place = field(default_factory=Place)
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    name: str = ""

    @property
    def property(self) -> str:
        """The property by its name, under which it is saved and found again."""
        return self.name or self.violation.value

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of a Failure."""
        return cls(**{**data, "violation": Violation(data["violation"]), "where": Place(**data["where"])})


@dataclass(frozen=True, kw_only=True)
class FuzzOutcome:
    """Every property that does not hold; `discarded` says why the case tells nothing, where it does not."""

    failures: tuple[Failure, ...] = ()
    discarded: str = ""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain dictionaries, lists and scalars."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(failures=tuple(map(Failure.from_json, data["failures"])), discarded=data["discarded"])
