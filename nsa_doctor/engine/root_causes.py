"""Which measurements have one cause: the same line gave birth to the value, or the same trouble came from there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nsa_doctor.core.facts import Fact
from nsa_doctor.core.measurement import (
    GRADIENTS,
    MODES,
    Diagnosis,
    Measurement,
    NonfiniteOrigin,
    Place,
    Point,
    RaisedOrigin,
    Trouble,
    TroubleKind,
)
from nsa_doctor.engine.measure_points import Examination, target_of

# A trouble of another kind says nothing of the subject.
TROUBLE_FACTS: Mapping[TroubleKind, Fact] = {
    "raised": Fact.RAISED,
    "wrong_shape": Fact.WRONG_SHAPE,
    "timeout": Fact.TIMEOUT,
    "died": Fact.DIED,
}


@dataclass
class RootCause:
    """Measurements with one cause: births on one line, a trouble, or (when tracing found nothing) neither.

    `raised` says who called the line that raises, and where it has what it is given from.
    """

    measurements: list[Measurement] = field(default_factory=list)
    origins: list[NonfiniteOrigin] = field(default_factory=list)
    trouble: Trouble | None = None
    raised: RaisedOrigin = field(default_factory=RaisedOrigin)
    num_untraced: int = 0
    reason: str = ""

    @property
    def first(self) -> Measurement:
        """The least length, in float32 and training mode where there is a choice."""
        return min(
            self.measurements, key=lambda m: (m.point.length, m.point.dtype != "float32", MODES.index(m.point.mode))
        )

    @property
    def points(self) -> list[Point]:
        """Where it was seen."""
        return [measurement.point for measurement in self.measurements]

    @property
    def place(self) -> Place:
        """Where it lies, as far as that is known: where values grew that leave the range on several lines."""
        if self.trouble is not None:
            return self.trouble.place
        if not self.origins:
            return Place()
        first = self.origins[0]
        is_on_several = len({origin.place.line_text for origin in self.origins}) > 1
        return first.grown_at if is_on_several and first.grown_at.file else first.place


def causes(examination: Examination) -> list[RootCause]:
    """Everything that is wrong: first what is not finite, then what gave nothing to count."""
    return [*_nonfinite_causes(examination), *_trouble_causes(examination)]


def fact_of(cause: RootCause, known: Sequence[Measurement]) -> Fact:
    """What was observed: named after what finiteness depends on, where all that was measured agrees it does."""
    if cause.trouble is not None:
        return TROUBLE_FACTS[cause.trouble.kind]
    if _all_beside(cause.points, known, "values", lambda bad, fine: bad != "normal" and fine == "normal"):
        return Fact.NONFINITE_BY_VALUES
    if _all_beside(cause.points, known, "dtype", lambda bad, fine: bad in _LOW and fine not in _LOW):
        return Fact.NONFINITE_BY_DTYPE
    reaches_output = any(target_of(measurement) != GRADIENTS for measurement in cause.measurements)
    if reaches_output and _all_beside(cause.points, known, "mode", lambda bad, fine: bad != fine):
        return Fact.NONFINITE_BY_MODE
    return Fact.NONFINITE_OUTPUT if reaches_output else Fact.NONFINITE_GRADIENT


_LOW = ("bfloat16", "float16")
_SILENT: tuple[TroubleKind, ...] = ("timeout", "died")  # from outside alone it is known where


def _nonfinite_causes(examination: Examination) -> list[RootCause]:
    diagnoses = {diagnosis.point: diagnosis for diagnosis in examination.diagnoses}
    found: dict[tuple[str, ...], RootCause] = {}
    untraced: list[Measurement] = []
    for measurement in examination.measurements:
        if measurement.trouble is not None or measurement.is_finite:
            continue
        diagnosis = diagnoses.get(measurement.point)
        if diagnosis is None or not diagnosis.origins:
            untraced.append(measurement)
            continue
        for origin in diagnosis.origins:
            cause = found.setdefault(_birth_key(origin), RootCause())
            cause.measurements.append(measurement)
            cause.origins.append(origin)
    for measurement in untraced:
        keys = _keys_beside(measurement, examination.measurements, diagnoses)
        diagnosis = diagnoses.get(measurement.point)
        for key in keys or [("untraced", target_of(measurement))]:
            cause = found.setdefault(key, RootCause())
            cause.measurements.append(measurement)
            cause.num_untraced += 1
            cause.reason = cause.reason or (diagnosis.reason if diagnosis else "")
    for cause in found.values():
        cause.origins.sort(key=lambda origin: bool(origin.grown_at.file))
    return list(found.values())


def _birth_key(origin: NonfiniteOrigin) -> tuple[str, ...]:
    """One line of the subject's source is one cause; where only torch's own line is known, the module counts too.

    What one line has grown to the end of its dtype's range is that line's, wherever it leaves the range.
    """
    place = origin.grown_at if origin.grown_at.file else origin.place
    if place.file and "/torch/nn/" not in place.file:
        return place.file, str(place.line)
    return place.module, place.file, str(place.line), origin.operation


def _keys_beside(
    measurement: Measurement, measurements: Iterable[Measurement], diagnoses: Mapping[Point, Diagnosis]
) -> list[tuple[str, ...]]:
    """The causes at the traced point that is most like one where tracing showed nothing, with the same target."""
    here, target = measurement.point, target_of(measurement)
    traced = [m.point for m in measurements if m.point in diagnoses and diagnoses[m.point].origins]
    alike = {m.point for m in measurements if target_of(m) == target}

    def distance(point: Point) -> tuple[bool, bool, bool, int]:
        other = (point.values != here.values, point.dtype != here.dtype, point.mode != here.mode)
        return (*other, abs(point.length - here.length))

    nearest = min((point for point in traced if point in alike), key=distance, default=None)
    return [] if nearest is None else list(dict.fromkeys(map(_birth_key, diagnoses[nearest].origins)))


def _trouble_causes(examination: Examination) -> list[RootCause]:
    raised = {diagnosis.point: diagnosis.raised for diagnosis in examination.diagnoses}
    found: dict[tuple[str, ...], RootCause] = {}
    for measurement in examination.measurements:
        trouble = measurement.trouble
        if trouble is None or trouble.kind not in TROUBLE_FACTS:
            continue
        where = trouble.place.line_text or trouble.message.partition(":")[0]
        if trouble.kind in _SILENT and trouble.place.file:  # it was seen on one line of several it may have ended on
            ended = trouble.message if trouble.kind == "died" else ""
            where = f"{trouble.place.file} {trouble.place.function} {ended}"
        cause = found.setdefault((trouble.kind, where), RootCause(trouble=trouble))
        cause.measurements.append(measurement)
        cause.raised = raised.get(measurement.point, cause.raised)
    return _without_unplaced(list(found.values()))


def _without_unplaced(found: Sequence[RootCause]) -> list[RootCause]:
    """With what ended as another did, in the same phase, but was not looked at so closely, counted among that."""
    kept: list[RootCause] = []
    for cause in sorted(found, key=_is_unplaced):
        alike = next((each for each in kept if _is_unplaced(cause) and _end_of(each) == _end_of(cause)), None)
        if alike is None:
            kept.append(cause)
        else:
            alike.measurements += cause.measurements
    return kept


def _is_unplaced(cause: RootCause) -> bool:
    return cause.trouble is not None and cause.trouble.kind in _SILENT and not cause.place.file


def _end_of(cause: RootCause) -> tuple[str, ...]:
    trouble = cause.trouble
    return () if trouble is None else (trouble.kind, trouble.message, trouble.phase)


def _all_beside(
    points: Sequence[Point], known: Sequence[Measurement], free: str, differs: Callable[[str, str], bool]
) -> bool:
    """Whether beside each point a finite one was measured that differs, as asked, in the `free` field alone."""
    fixed = [name for name in ("length", "dtype", "mode", "values") if name != free]
    finite = [measurement.point for measurement in known if measurement.is_finite]

    def is_beside(bad: Point, fine: Point) -> bool:
        return differs(getattr(bad, free), getattr(fine, free)) and all(
            getattr(bad, name) == getattr(fine, name) for name in fixed
        )

    return all(any(is_beside(bad, fine) for fine in finite) for bad in points)
