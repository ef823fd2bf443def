"""So many of so many, and how sure that makes the rate behind it."""

import math
from dataclasses import dataclass
from typing import Any

_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Share:
    """So many of so many, with the Wilson 95 % interval of the rate behind it."""

    hits: int
    total: int

    @property
    def rate(self) -> float:
        """The share itself; NaN of nothing."""
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Where the rate lies with 95 % confidence."""
        if not self.total:
            return 0.0, 1.0
        n, p, z2 = self.total, self.rate, _NORMAL_95**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = _NORMAL_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        if not self.total:
            return "none"
        low, high = (100 * end for end in self.interval)
        return f"{self.hits:3d} of {self.total:3d}  {100 * self.rate:5.1f} %  [{low:.1f}, {high:.1f}]"

    def as_json(self) -> dict[str, Any]:
        """Plain data, the interval rounded."""
        return {"hits": self.hits, "of": self.total, "wilson_95": [round(end, 4) for end in self.interval]}
