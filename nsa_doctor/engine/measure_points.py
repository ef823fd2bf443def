"""The measuring room: which points to measure, which to trace, and which neighbours serve as controls.

The command `sweep` and the checks of the NAN family come here, one with a child process, the others without.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nsa_doctor.core.measurement import MODES, OUTPUT, TARGETS, Diagnosis, Measurement, Point

_MOST_TRACED = 8
_MOST_OPERATIONS = 250_000  # traced in all before another point is traced: some 20 s
_MOST_RAISING = 3
_MOST_CONTROLS = 6


class Measurer(Protocol):
    """Measures and traces one subject."""

    def measure(self, point: Point) -> Measurement:
        """Run the subject once and count."""
        ...

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        """Run it again, traced: where what is not finite was born, or whence what raises has what it is given."""
        ...


@dataclass
class Examination:
    """What was found out so far; it grows as the work goes on, so that an interruption keeps what there is.

    Of a subject that serves `whole_multiples_of` a number alone, other lengths were filled up: they are no control.
    """

    measurements: list[Measurement] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    controls: list[Measurement] = field(default_factory=list)
    whole_multiples_of: int = 1


def points(
    lengths: Iterable[int],
    dtypes: Sequence[str] = ("float32",),
    modes: Sequence[str] = MODES,
    values: Sequence[str] = ("normal",),
) -> list[Point]:
    """Every combination, by dtype, then values, then length, then mode."""
    lengths = list(lengths)
    return [
        Point(length=length, dtype=dtype, mode=mode, values=value)  # type: ignore[arg-type]
        for dtype in dtypes
        for value in values
        for length in lengths
        for mode in modes
    ]


def examine(
    measurer: Measurer,
    examination: Examination,
    to_measure: Iterable[Point],
    listen: Callable[[str, Measurement | Diagnosis], None] = lambda stage, answer: None,
    tracing_seconds: float = math.inf,
) -> None:
    """Measure all points, trace what is not finite, measure neighbours of what is wrong; adds to `examination`.

    After `tracing_seconds` of tracing no further point is traced.
    """
    for point in to_measure:
        examination.measurements.append(measurer.measure(point))
        listen("measured", examination.measurements[-1])
    spent, until = 0, time.monotonic() + tracing_seconds
    for point in _to_trace(examination.measurements):
        if spent > _MOST_OPERATIONS or time.monotonic() > until:
            break
        diagnosis = measurer.diagnose(point)
        spent += diagnosis.num_operations
        examination.diagnoses.append(diagnosis)
        listen("traced", diagnosis)
    for point in _raising(examination.measurements):
        examination.diagnoses.append(measurer.diagnose(point, raises=True))
        listen("traced", examination.diagnoses[-1])
    for point in _neighbours(examination.measurements):
        examination.controls.append(measurer.measure(point))
        listen("controlled", examination.controls[-1])


def target_of(measurement: Measurement) -> str:
    """What is not finite: the output, else what was returned beside it, else the gradients."""
    return next((target for target in TARGETS if measurement.is_bad(target)), OUTPUT)


def _to_trace(measurements: Sequence[Measurement]) -> list[Point]:
    """Points to trace: the least bad length of every kind of run, further lengths, the rest; up to a limit."""
    bad = [measurement for measurement in measurements if measurement.trouble is None and not measurement.is_finite]
    bad.sort(key=lambda measurement: measurement.point.length)
    first: dict[tuple[str, str, str, str], Point] = {}
    for measurement in bad:
        point = measurement.point
        first.setdefault((point.dtype, point.values, point.mode, target_of(measurement)), point)
    chosen = list(first.values())
    lengths_seen = {point.length for point in chosen}
    for measurement in bad:
        if measurement.point.length not in lengths_seen:
            lengths_seen.add(measurement.point.length)
            chosen.append(measurement.point)
    chosen += [measurement.point for measurement in bad if measurement.point not in chosen]
    return chosen[:_MOST_TRACED]


def _raising(measurements: Sequence[Measurement]) -> list[Point]:
    """Of every line that raises, the first point at which it does; up to a limit."""
    first: dict[str, Point] = {}
    for measurement in measurements:
        trouble = measurement.trouble
        if trouble is not None and trouble.kind == "raised":
            first.setdefault(trouble.place.line_text, measurement.point)
    return list(first.values())[:_MOST_RAISING]


def _neighbours(measurements: Sequence[Measurement]) -> list[Point]:
    """The lengths one below and one above the least bad one of every kind of run, where they were not measured."""
    known = {measurement.point for measurement in measurements}
    least: dict[tuple[str, str, str], Point] = {}
    for measurement in measurements:
        trouble = measurement.trouble
        if measurement.is_finite or (trouble is not None and trouble.kind not in ("raised", "wrong_shape")):
            continue
        point = measurement.point
        key = (point.dtype, point.values, target_of(measurement) if trouble is None else trouble.kind)
        if key not in least or point.length < least[key].length:
            least[key] = point
    around = [replace(point, length=point.length + step) for point in least.values() for step in (-1, 1)]
    return [point for point in dict.fromkeys(around) if point.length > 0 and point not in known][:_MOST_CONTROLS]
