"""What was timed, for a terminal: a table by length, exponents, who takes the time, and a chart on log scales."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from nsa_doctor.core.text import escaped, short_bytes, short_count, short_number

_CHART_HEIGHT = 8
_CHART_WIDTH = 48
_BAR_WIDTH = 30
_MOST_PARTS = 6


def speed_parts(timed: Mapping[str, Any]) -> Iterator[str | Table]:
    """Tables and lines, in order; nothing when nothing was timed."""
    rows: Sequence[Mapping[str, Any]] = timed.get("rows", ())
    if not rows:
        return
    yield _table(rows)
    yield (
        "Tokens/s, medians; spread: interquartile range of the passes; x dense: time over\n"
        "that of plain dense attention as wide, beside it; ops and waits per token."
    )
    exponents = {name: found for name, found in timed["exponents"].items() if found}
    if exponents:
        yield "\ngrows with the length to the power (95 % interval):"
        for name, found in exponents.items():
            yield f"  {escaped(name):<16}{found['value']:5.2f}  ({found['low']:.2f} to {found['high']:.2f})"
    if timed["shares"]:
        yield f"\nshare of the time at S={rows[-1]['length']}, by sampling:"
        for name, share in list(timed["shares"].items())[:_MOST_PARTS]:
            width = round(share * _BAR_WIDTH) if 0 <= share <= 1 else 0
            yield f"  {escaped(name)[:40]:<40} {share:4.0%} {'#' * width}"
    yield from _chart(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True)
    for name in ("S", "forward", "fwd+bwd", "decode", "spread", "x dense", "peak", "ops", "waits"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["length"]),
            *(_rate(row.get(f"{kind}_tokens_per_second")) for kind in ("forward", "train", "decode")),
            f"{row['spread']:.0%}" if math.isfinite(row["spread"]) else "-",
            short_number(row["slowdown"]) if "slowdown" in row else "-",
            short_bytes(row["peak_bytes"]),
            short_number(row["operations_per_token"]),
            short_number(row["waits_per_token"]),
        )
    return table


def _rate(tokens_per_second: float | None) -> str:
    is_known = tokens_per_second is not None and math.isfinite(tokens_per_second)
    return short_count(round(tokens_per_second)) if tokens_per_second is not None and is_known else "-"


def _chart(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Milliseconds of a pass against S, both on log scales; `*` the subject, `.` plain dense attention."""
    kind = "train" if all(row.get("train") for row in rows) else "forward"
    series = [list(_points(rows, name)) for name in (kind, f"dense_{kind}")]
    points = [point for one in series for point in one]
    if len({x for x, _ in points}) < 3:
        return
    least_x, most_x = (edge(math.log(x) for x, _ in points) for edge in (min, max))
    least_y, most_y = (edge(math.log(y) for _, y in points) for edge in (min, max))
    grid = [[" "] * (_CHART_WIDTH + 1) for _ in range(_CHART_HEIGHT + 1)]
    for one, mark in zip(series, "*.", strict=True):
        for x, y in one:
            column = round((math.log(x) - least_x) / (most_x - least_x) * _CHART_WIDTH)
            line = round((math.log(y) - least_y) / max(most_y - least_y, 1e-9) * _CHART_HEIGHT)
            grid[_CHART_HEIGHT - line][column] = mark
    yield f"\nmilliseconds of a pass against S, log scales (* subject, . dense; {kind}):"
    for number, cells in enumerate(grid):
        edges = {0: f"{math.exp(most_y):8.3g}", _CHART_HEIGHT: f"{math.exp(least_y):8.3g}"}
        yield f"{edges.get(number, ' ' * 8)} |{''.join(cells)}".rstrip()
    first, last = str(round(math.exp(least_x))), str(round(math.exp(most_x)))
    yield f"{' ' * 10}{first}{' ' * (_CHART_WIDTH + 1 - len(first) - len(last))}{last}"


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[int, float]]:
    """(length, milliseconds) of what can stand on a logarithmic scale."""
    for row in rows:
        milliseconds = min(row.get(name) or [0.0]) * 1000
        if row["length"] > 0 and 0 < milliseconds < math.inf:
            yield row["length"], milliseconds
