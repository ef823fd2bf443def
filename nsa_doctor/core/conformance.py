"""One cell of a matrix of models and properties, as it is written down and read again."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Status = Literal[
    "holds", "differs", "raises", "hangs", "dies", "unexplained", "refuses", "does not apply", "cannot be built"
]
PROPERTY_NAMES = ("causal", "batch", "decode", "chunk", "padding", "packed", "twins", "grad", "generate")
STATUSES: tuple[Status, ...] = get_args(Status)
RED: tuple[Status, ...] = ("differs", "raises", "hangs", "dies", "unexplained")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """How one model fares in one property: largest difference, what rounding explains of it, and a script of torch."""

    model: str
    property_name: str
    status: Status
    text: str = ""
    error: float = 0.0
    bound: float = 0.0
    trials: int = 0
    dtype: str = ""
    seconds: float = 0.0
    script: str = ""

    @property
    def is_red(self) -> bool:
        """Whether something is wrong there."""
        return self.status in RED

    @property
    def command(self) -> str:
        """The line that measures it again."""
        return f"nsa-doctor matrix hf --types {self.model.removeprefix('hf:')} --properties {self.property_name}"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Cell":
        """The cell that `to_json` gave."""
        return cls(**data)
