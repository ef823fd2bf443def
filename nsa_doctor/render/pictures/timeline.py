"""A training run on one time line: loss, speed, memory and the time between heartbeats."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsa_doctor.core.finding import Report
from nsa_doctor.core.measures import MEASURES
from nsa_doctor.core.text import short_bytes, short_count, short_number
from nsa_doctor.render.pictures.paper import PAINT, SMALL, Sheet, axes, drawn, words
from nsa_doctor.render.pictures.picture import Panel, Picture, Table, tabled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTHS = {"narrow": 360, "wide": 880}
_LEFT, _RIGHT, _TOP, _HIGH, _BETWEEN, _BELOW = 56.0, 12.0, 22.0, 76.0, 30.0, 30.0
_ENDLESS = 1e100  # what no axis can be drawn for
_LONG = 0.02  # of the whole run: a silence that a reader sees


@dataclass(frozen=True)
class _Series:
    """One quantity along the run; a gap where it is not known, `unsound` where it is not finite."""

    name: str
    paint: str
    points: tuple[tuple[float, float], ...]
    unsound: tuple[float, ...]
    unit: str = ""


@dataclass(frozen=True)
class _Run:
    """What the picture shows: along `axis`, from 0 to `end`."""

    series: tuple[_Series, ...]
    silences: tuple[tuple[float, float], ...]
    axis: str
    end: float

    @property
    def longest_unseen(self) -> float:
        """A longer silence is drawn as one."""
        return self.end * _LONG


def timeline_picture(report: Report) -> Picture | None:
    """The run's facts, and its time line where it left at least two heartbeats; nothing where there is no run."""
    if not report.run:
        return None
    run = _read(report.run)
    return Picture(
        name="run",
        title="Training run",
        short="Run",
        sentences=tuple(_sentences(report.run)),
        panels=tuple(_panel(kind, run) for kind in _WIDTHS) if run is not None else (),
        table=_table(report.run),
    )


def _read(record: Mapping[str, Any]) -> _Run | None:
    columns = record.get("series") or {}
    times = [_number(value) for value in columns.get("ts") or ()]
    steps = [_number(value) for value in columns.get("step") or ()]
    is_timed = sum(_is_finite(value) for value in times) > 1
    along = times if is_timed else steps
    known = [value for value in along if value is not None and math.isfinite(value)]
    if len(known) < 2 or min(known) == max(known):
        return None
    start = min(known)
    series = tuple(
        _series(name, paint, along, columns.get(key) or (), start, unit)
        for name, paint, key, unit in (
            ("loss", "one", "loss", ""),
            ("tokens/s", "two", "tokens_per_second", ""),
            ("memory", "three", "memory", "bytes"),
        )
    )
    silences = [(_number(since), _number(seconds)) for since, seconds in (record.get("silences") or ()) if is_timed]
    return _Run(
        series=tuple(each for each in series if each.unsound or any(value for _, value in each.points)),
        silences=tuple((a - start, b) for a, b in silences if a is not None and b is not None and math.isfinite(a + b)),
        axis="seconds" if is_timed else "step",
        end=max(known) - start,
    )


def _series(
    name: str, paint: str, along: Sequence[float | None], values: Sequence[Any], start: float, unit: str
) -> _Series:
    points, unsound = [], []
    for x, value in zip(along, map(_number, values), strict=False):
        if x is None or not math.isfinite(x) or value is None:
            continue
        if math.isfinite(value):
            points.append((x - start, value))
        else:
            unsound.append(x - start)
    return _Series(name, paint, tuple(sorted(points)), tuple(unsound), unit)


def thinned(points: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """At most about `count` of them: of each stretch the first, the last, the least and the largest."""
    if len(points) <= count:
        return list(points)
    size = math.ceil(len(points) / max(1, count // 4))
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        ends = {
            stretch[0],
            stretch[-1],
            min(stretch, key=lambda point: point[1]),
            max(stretch, key=lambda point: point[1]),
        }
        kept += sorted(ends)
    return kept


def _panel(kind: str, run: _Run) -> Panel:
    width = _WIDTHS[kind]
    count = len(run.series) + bool(run.silences)
    height = _TOP + count * _HIGH + (count - 1) * _BETWEEN + _BELOW
    names = [series.name for series in run.series] + (["time between heartbeats"] if run.silences else [])
    sheet = Sheet(
        name=f"run-{kind}",
        width=width,
        height=height,
        label=f"Time line of the run: {', '.join(names)}",
        description="; ".join(_in_words(series) for series in run.series),
        kind=kind,
    )
    factor, unit = _time_unit(run.end) if run.axis == "seconds" else (1.0, "step")

    def draw(figure: "Figure") -> None:
        for number in range(count):
            own = axes(figure, (_LEFT, _TOP + number * (_HIGH + _BETWEEN), width - _LEFT - _RIGHT, _HIGH))
            own.set_xlim(0, run.end / factor)
            for since, seconds in run.silences:
                if seconds > run.longest_unseen:
                    own.axvspan(
                        since / factor, (since + seconds) / factor, color=PAINT["halt"], alpha=0.14, linewidth=0
                    )
            if number < len(run.series):
                _draw_series(own, run.series[number], run, factor, width)
            else:
                _draw_silences(own, _longest_by_column(run, round(width)), factor)
            own.tick_params(axis="x", labelbottom=number == count - 1)
            _time_ticks(own, run.end / factor, unit, 8 if kind == "wide" else 4)

    return Panel(drawn(sheet, draw))


def _draw_series(own: "Axes", series: _Series, run: _Run, factor: float, width: float) -> None:
    title = f"{series.name}, {len(series.unsound)} not finite" if series.unsound else series.name
    words(own, 0, 1.08, title, transform=own.transAxes, fontsize=SMALL, fontweight="bold", color=PAINT[series.paint])
    if series.points:
        for points in _unbroken(thinned(series.points, round(width)), run):
            own.plot([x / factor for x, _ in points], [y for _, y in points], color=PAINT[series.paint], linewidth=1.4)
        _value_ticks(own, [y for _, y in series.points], series.unit)
    else:
        own.set_yticks([])
    if series.unsound:
        marks = series.unsound[:: max(1, len(series.unsound) // 200)]
        own.scatter(
            [x / factor for x in marks],
            [0.94] * len(marks),
            transform=own.get_xaxis_transform(),
            color=PAINT["bad"],
            marker="x",
            s=22,
            linewidths=1.5,
            clip_on=False,
        )


def _unbroken(points: Sequence[tuple[float, float]], run: _Run) -> Iterator[list[tuple[float, float]]]:
    """The points between one long silence and the next."""
    edges = sorted(since for since, seconds in run.silences if seconds > run.longest_unseen)
    rest = list(points)
    for edge in edges:
        yield [point for point in rest if point[0] <= edge]
        rest = [point for point in rest if point[0] > edge]
    yield rest


def _draw_silences(own: "Axes", silences: Sequence[tuple[float, float]], factor: float) -> None:
    words(
        own,
        0,
        1.08,
        "time between heartbeats",
        transform=own.transAxes,
        fontsize=SMALL,
        fontweight="bold",
        color=PAINT["halt"],
    )
    x = [(since + seconds / 2) / factor for since, seconds in silences]
    y = [seconds for _, seconds in silences]
    own.vlines(x, 0, y, color=PAINT["halt"], linewidth=2)
    _value_ticks(own, [0.0, *y], "s")


def _longest_by_column(run: _Run, count: int) -> list[tuple[float, float]]:
    """As many silences as a picture has columns to show: the longest of those that share one."""
    longest: dict[int, tuple[float, float]] = {}
    for since, seconds in run.silences:
        column = int(since / run.end * count)
        longest[column] = max((since, seconds), longest.get(column, (since, 0.0)), key=lambda each: each[1])
    return sorted(longest.values())


def _value_ticks(own: "Axes", values: Sequence[float], unit: str) -> None:
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    own.set_ylim(low - margin, high + margin)
    ticks = [low, high] if high > low else [low]
    own.set_yticks(ticks, [_amount(tick, unit) for tick in ticks], parse_math=False)


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return short_bytes(value)
    return f"{short_number(value)} s" if unit == "s" else short_count(value)


def _time_unit(seconds: float) -> tuple[float, str]:
    for limit, factor, unit in ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (345_600.0, 3600.0, "h")):
        if seconds < limit:
            return factor, unit
    return 86_400.0, "days"


def _time_ticks(own: "Axes", end: float, unit: str, count: int) -> None:
    rough = end / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    ticks = [number * step for number in range(int(end / step) + 1)]
    labels = [f"{tick:g} {unit}" if number == len(ticks) - 1 else f"{tick:g}" for number, tick in enumerate(ticks)]
    own.set_xticks(ticks, labels, parse_math=False)


def _sentences(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{record.get('folder', '')}" + (f" on {record['device_name']}" if record.get("device_name") else "")
    for name, word in (("watchdog_dumps", "stack dump"), ("checkpoints", "checkpoint")):
        names = record.get(name) or ()
        if names:
            listed = ", ".join(map(str, names[:6])) + (", ..." if len(names) > 6 else "")
            yield f"{len(names)} {word}{'' if len(names) == 1 else 's'}: {listed}"


def _in_words(series: _Series) -> str:
    unsound = f", not finite {len(series.unsound)} times" if series.unsound else ""
    if not series.points:
        return f"{series.name} never finite"
    values = [value for _, value in series.points]
    first, last = series.points[0][1], series.points[-1][1]
    parts = [_amount(value, series.unit) for value in (first, last, min(values), max(values))]
    return f"{series.name} from {parts[0]} to {parts[1]}, between {parts[2]} and {parts[3]}{unsound}"


def _table(record: Mapping[str, Any]) -> Table:
    """The run's numbers by what they measure."""
    rows = []
    for name, value in (record.get("numbers") or {}).items():
        measure = MEASURES.get(name)
        unit = f" {measure.unit}" if measure and measure.unit else ""
        amount = _number(value)
        shown = "not measured" if amount is None else f"{short_number(amount, 4)}{unit}"
        rows.append((measure.title if measure else str(name), shown))
    return tabled(("measure", "value"), rows)


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _ENDLESS else math.copysign(math.inf, value)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
