"""Time and memory against the number of tokens, on log axes, with the exponents they grow by."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsa_doctor.core.finding import Report
from nsa_doctor.core.growth import Exponent, fitted_exponent
from nsa_doctor.core.measurement import Measurement
from nsa_doctor.core.text import plain_rate, short_bytes, short_count, short_number
from nsa_doctor.render.pictures.paper import PAINT, SMALL, Sheet, axes, drawn, words
from nsa_doctor.render.pictures.picture import Panel, Picture, Table, tabled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 360, 270
_BOX = (54.0, 12.0, 204.0, 222.0)
_MOST_TICKS = 6
_LEAST, _MOST = 1e-12, 1e18  # of seconds or bytes that anything takes
_LAST_PART = 8  # what a pass costs whatever its length hides how it grows: only the last three octaves of a sweep tell
_LEAST_APART = 15.0
_STYLES = (("one", "o", "-"), ("two", "s", "-"), ("three", "^", "-"), ("four", "D", "-"))
_DENSE_STYLES = (("soft", "o", ":"), ("soft", "s", ":"))
_MODE_WORDS = {"train": "in training", "eval": "in eval mode", "no_grad": "without gradients"}
_KINDS = {"forward": "forward", "train": "with backward", "dense_forward": "dense forward", "dense_train": "dense both"}


@dataclass(frozen=True)
class _Line:
    """One quantity by length; `samples` are single passes. All are positive; the exponent is that from a length on."""

    name: str
    points: tuple[tuple[int, float], ...]
    style: tuple[str, str, str]
    samples: tuple[tuple[int, float], ...] = ()
    exponent: Exponent | None = None
    fitted_from: int = 0


def growth_picture(report: Report) -> Picture | None:
    """Both pictures; nothing where fewer than two lengths were timed."""
    timed = report.throughput.get("rows", ())
    times = list(_timed(report.throughput) if timed else _swept(report.measurements, "seconds", "a pass"))
    sizes = list(_sized(report.throughput) if timed else _swept(report.measurements, "peak_bytes", "peak memory"))
    panels = [
        _panel(name, heading, lines, form)
        for name, heading, lines, form in (
            ("time", "Time of a pass", times, _seconds),
            ("memory", "Peak memory", sizes, _bytes),
        )
        if any(len(line.points) > 1 for line in lines)
    ]
    if not panels:
        return None
    source = (
        "Medians of repeated passes; faint points are single ones." if timed else "As the sweep met them, once each."
    )
    return Picture(
        name="growth",
        title="Time and memory by length",
        short="Time and memory",
        sentences=(source, *_exponents([*times, *sizes])),
        panels=tuple(panels),
        table=_timed_table(timed) if timed else _swept_table(times, sizes),
        shares=tuple(sorted(report.throughput.get("shares", {}).items(), key=lambda pair: -pair[1])),
    )


def _timed(throughput: Mapping[str, Any]) -> Iterator[_Line]:
    rows = throughput["rows"]
    styles = dict(zip(_KINDS, (*_STYLES[:2], *_DENSE_STYLES), strict=True))
    for kind, name in _KINDS.items():
        points = [(row["length"], statistics.median(row[kind])) for row in rows if row.get(kind)]
        samples = [(row["length"], seconds) for row in rows for seconds in row.get(kind, ())]
        found = throughput["exponents"].get(f"{kind} seconds")
        yield _Line(name, _positive(points), styles[kind], _positive(samples), _exponent(found))


def _sized(throughput: Mapping[str, Any]) -> Iterator[_Line]:
    points = [(row["length"], row["peak_bytes"]) for row in throughput["rows"] if row["peak_bytes"]]
    yield _Line("peak memory", _positive(points), _STYLES[2], (), _exponent(throughput["exponents"].get("peak bytes")))


def _swept(measurements: Sequence[Measurement], quantity: str, name: str) -> Iterator[_Line]:
    """The first dtype on ordinary input, in the mode that does most."""
    usual = [each for each in measurements if each.point.values == "normal" and each.trouble is None]
    for dtype in list(dict.fromkeys(each.point.dtype for each in usual))[:1]:
        for mode in ("train", "eval", "no_grad"):
            points = _positive(
                sorted(
                    (each.point.length, amount)
                    for each in usual
                    if (each.point.dtype, each.point.mode) == (dtype, mode)
                    and (amount := getattr(each, quantity)) is not None
                )
            )
            if len(points) > 1:
                last = [point for point in points if point[0] * _LAST_PART >= points[-1][0]]
                fit = fitted_exponent(*zip(*last, strict=True))
                yield _Line(
                    f"{name} {_MODE_WORDS[mode]}",
                    points,
                    _STYLES[0 if quantity == "seconds" else 2],
                    (),
                    fit,
                    last[0][0],
                )
                return


def _positive(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Those that a log axis can show."""
    return tuple((length, float(amount)) for length, amount in points if length > 0 and _LEAST < amount < _MOST)


def _exponent(found: Mapping[str, float] | None) -> Exponent | None:
    exponent = None if found is None else Exponent(found["value"], found["low"], found["high"])
    return exponent if exponent is not None and math.isfinite(exponent.value) else None


def _exponents(lines: Sequence[_Line]) -> Iterator[str]:
    for line in lines:
        if line.exponent is not None:
            fit = line.exponent
            since = f" from S={line.fitted_from} on" if line.fitted_from else ""
            name = f"{line.name[:1].upper()}{line.name[1:]}"
            yield f"{name}: grows as S^{fit.value:.2f}{since} (95 %: {fit.low:.2f} to {fit.high:.2f})."


def _panel(name: str, heading: str, lines: Sequence[_Line], form: Any) -> Panel:
    shown = [line for line in lines if len(line.points) > 1]
    description = "; ".join(
        f"{line.name}: {', '.join(f'{form(amount)} at S={length}' for length, amount in line.points)}" for line in shown
    )
    sheet = Sheet(
        name=f"growth-{name}",
        width=_WIDTH,
        height=_HEIGHT,
        label=f"{heading} against S, log axes",
        description=description,
        kind="plot",
    )

    def draw(figure: "Figure") -> None:
        own = axes(figure, _BOX)
        own.set_xscale("log")
        own.set_yscale("log")
        for line in shown:
            _draw_line(own, line)
        _limits(own, shown)
        _ticks(own, sorted({length for line in shown for length, _ in line.points}), form)
        _names(own, shown)
        words(own, 1.0, -0.125, "S", transform=own.transAxes, ha="right", color=PAINT["soft"], fontsize=SMALL)

    return Panel(drawn(sheet, draw), heading)


def _draw_line(own: "Axes", line: _Line) -> None:
    colour, marker, dash = line.style
    if line.samples:
        x, y = zip(*line.samples, strict=True)
        own.scatter(x, y, s=5, color=PAINT[colour], alpha=0.3, linewidths=0)
    x, y = zip(*line.points, strict=True)
    own.plot(x, y, color=PAINT[colour], linestyle=dash, linewidth=1.8, marker=marker, markersize=5)
    if line.exponent is not None:
        fitted = [(a, b) for a, b in line.points if a >= line.fitted_from]
        middle_x, middle_y = (math.exp(statistics.fmean(map(math.log, part))) for part in zip(*fitted, strict=True))
        ends = (fitted[0][0], fitted[-1][0])
        fit = [middle_y * (end / middle_x) ** line.exponent.value for end in ends]
        own.plot(ends, fit, color=PAINT[colour], linestyle=(0, (2, 2)), linewidth=1, alpha=0.7)


def _limits(own: "Axes", lines: Sequence[_Line]) -> None:
    for along, setter in ((0, own.set_xlim), (1, own.set_ylim)):
        values = [point[along] for line in lines for point in (*line.points, *line.samples)]
        low, high = min(values), max(values)
        margin = max((high / low) ** 0.06, 1.05)
        setter(low / margin, high * margin)


def _ticks(own: "Axes", lengths: Sequence[int], form: Any) -> None:
    low, high = own.get_ylim()
    marks = _powers_of_two(low, high) if form is _bytes else _round_values(low, high)
    own.set_yticks(marks, [form(value) for value in marks], parse_math=False)
    ticks = _apart(lengths)
    own.set_xticks(ticks, [short_count(each) for each in ticks], parse_math=False)
    own.minorticks_off()


def _apart(lengths: Sequence[int]) -> list[int]:
    """The first, the last, and those between that leave room for their labels."""
    first, last = lengths[0], lengths[-1]
    step = math.log(last / first) / (_MOST_TICKS - 1) * 0.99
    kept = [first]
    for each in lengths[1:-1]:
        if math.log(each / kept[-1]) >= step and math.log(last / each) >= step:
            kept.append(each)
    return [*kept, last]


def _round_values(low: float, high: float) -> list[float]:
    """1, 2 or 5 times powers of ten, as few of these as show at least two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        found = [m * 10.0**decade for decade in decades for m in mantissas if low <= m * 10.0**decade <= high]
        if len(found) > 2:
            break
    return found[:: max(1, len(found) // 6)]


def _powers_of_two(low: float, high: float) -> list[float]:
    found = [2.0**power for power in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    kept = [value for value in found if low <= value <= high]
    return kept[:: math.ceil(len(kept) / _MOST_TICKS)] if kept else []


def _names(own: "Axes", lines: Sequence[_Line]) -> None:
    """Each line's name at its end, moved apart where two would meet."""
    ends = sorted((own.transData.transform(line.points[-1])[1], line) for line in lines)
    lowest = -math.inf
    for height, line in sorted(ends, key=lambda pair: pair[0]):
        height = max(height, lowest + _LEAST_APART)
        lowest = height
        y = own.transAxes.inverted().transform((0, height))[1]
        words(own, 1.03, y, line.name, transform=own.transAxes, va="center", color=PAINT[line.style[0]], fontsize=SMALL)


def _seconds(value: float) -> str:
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{short_number(value * factor)} {unit}"
    return f"{short_number(value)} s"


def _bytes(value: float) -> str:
    return short_bytes(round(value))


def _timed_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    heading = (
        "S",
        "forward",
        "with backward",
        "decode",
        "spread",
        "x dense",
        "peak",
        "operations per token",
        "waits per token",
    )
    body = []
    for row in rows:
        rates = [row.get(f"{kind}_tokens_per_second") for kind in ("forward", "train", "decode")]
        body.append((
            str(row["length"]),
            *("" if rate is None else f"{plain_rate(rate)} tokens/s" for rate in rates),
            f"{row['spread']:.0%}" if math.isfinite(row["spread"]) else "",
            short_number(row['slowdown']) if "slowdown" in row else "",
            short_bytes(row["peak_bytes"]),
            short_number(row['operations_per_token']),
            short_number(row['waits_per_token']),
        ))  # fmt: skip
    return tabled(heading, body)


def _swept_table(times: Sequence[_Line], sizes: Sequence[_Line]) -> Table:
    seconds, amounts = (dict(point for line in lines for point in line.points) for lines in (times, sizes))
    rows = [
        (
            str(length),
            _seconds(seconds[length]) if length in seconds else "",
            _bytes(amounts[length]) if length in amounts else "",
        )
        for length in sorted(seconds | amounts)
    ]
    return tabled(("S", "time of a pass", "peak memory"), rows)
