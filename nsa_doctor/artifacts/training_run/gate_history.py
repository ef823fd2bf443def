"""Looks at the gates of a run, by layer, as gates.csv tells them."""

import math
from collections.abc import Mapping, Sequence

from nsa_doctor.artifacts.training_run.record import RunRecord

SHARES = ("cmp", "sel", "win")
Look = Mapping[str, float]


def looks_by_layer(record: RunRecord, *more: str) -> dict[int, Sequence[Look]]:
    """The latest look of each step, by step; those that lack a share, or a column of `more`, are left out."""
    names = ("step", "layer", *SHARES, *more)
    whole = [row for row in record.gates if all(math.isfinite(row.get(name, math.nan)) for name in names)]
    latest = {(int(row["layer"]), row["step"]): row for row in whole}
    found: dict[int, list[Look]] = {}
    for layer, step in sorted(latest):
        found.setdefault(layer, []).append(latest[layer, step])
    return dict(found)
