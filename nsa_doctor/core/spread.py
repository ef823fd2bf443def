"""How far repeated measurements lie apart."""

import statistics
from collections.abc import Sequence


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range over the median; infinite for fewer than three samples."""
    if len(samples) < 3:
        return float("inf")
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / median if median else 0.0 if high == low else float("inf")
