"""What came of trying one case."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from nsa_doctor.finding import Scalar
from nsa_doctor.measurement import Place


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One property that does not hold: its name, what was seen, where, and the least that tells it from others."""

    property: str
    message: str
    where: Place = field(default_factory=Place)
    evidence: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Every property that does not hold; `discarded` says why the case tells nothing, where it does not."""

    failures: tuple[Failure, ...] = ()
    discarded: str = ""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain dictionaries, lists and scalars."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        failures = (Failure(**{**failure, "where": Place(**failure["where"])}) for failure in data["failures"])
        return cls(failures=tuple(failures), discarded=data["discarded"])
