"""From measurements to findings: what has one cause becomes one finding, with its control and its command line."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nsa_doctor.examine import Examination, target_of
from nsa_doctor.finding import Finding, Scalar
from nsa_doctor.lengths import nearest
from nsa_doctor.measurement import GRADIENTS, MODES, OUTPUT, Birth, Diagnosis, Measurement, Place, Point, Trouble
from nsa_doctor.wording import joined, numbers

NAN_OUTPUT, NAN_GRADIENT, NAN_MODE, NAN_VALUES, NAN_DTYPE = "NAN101", "NAN102", "NAN103", "NAN104", "NAN105"
TROUBLE_CODES = {"raised": "FWD101", "wrong_shape": "FWD102", "timeout": "HNG101", "died": "HNG101"}


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The command that repeats a measurement: the words that name the subject, and the run's conditions."""

    options: tuple[str, ...] = ()
    device: str = "cpu"
    seed: int = 0
    timeout: float | None = None

    def of(self, point: Point) -> str:
        """One line to paste."""
        words = ["nsa-doctor", "sweep", "--seq", str(point.length), *self.options]
        words += ["--dtype", point.dtype] if point.dtype != "float32" else []
        words += ["--values", point.values] if point.values != "normal" else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--timeout", f"{self.timeout:g}"] if self.timeout is not None else []
        return shlex.join([*words, "--seed", str(self.seed)])


def findings(examination: Examination, command: CommandLine) -> list[Finding]:
    """Everything that is wrong, one finding per cause: first what is not finite, then what gave nothing to count."""
    known = [*examination.measurements, *examination.controls]
    groups = [*_nonfinite_groups(examination), *_trouble_groups(examination.measurements)]
    return [_finding(group, known, command) for group in groups]


@dataclass
class _Group:
    """Measurements with one cause: a birth, a trouble, or (untraced) neither."""

    measurements: list[Measurement] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    trouble: Trouble | None = None
    untraced: int = 0
    reason: str = ""

    @property
    def first(self) -> Measurement:
        """The least length, in training mode and float32 where there is a choice."""
        return min(
            self.measurements, key=lambda m: (m.point.length, m.point.dtype != "float32", MODES.index(m.point.mode))
        )


def _nonfinite_groups(examination: Examination) -> list[_Group]:
    bad = [m for m in examination.measurements if m.trouble is None and not m.is_finite]
    diagnoses = {diagnosis.point: diagnosis for diagnosis in examination.diagnoses}
    groups: dict[tuple[str, ...], _Group] = {}
    untraced: list[Measurement] = []
    for measurement in bad:
        diagnosis = diagnoses.get(measurement.point)
        if diagnosis is None or not diagnosis.births:
            untraced.append(measurement)
            continue
        for birth in diagnosis.births:
            group = groups.setdefault(_birth_key(birth), _Group())
            group.measurements.append(measurement)
            group.births.append(birth)
    for measurement in untraced:
        _attach(measurement, groups, diagnoses.get(measurement.point))
    return list(groups.values())


def _birth_key(birth: Birth) -> tuple[str, ...]:
    """One line of the subject's source is one cause; where only torch's own line is known, the module counts too."""
    place = birth.place
    if place.file and "/torch/nn/" not in place.file:
        return place.file, str(place.line)
    return place.module, place.file, str(place.line), birth.operation


def _attach(measurement: Measurement, groups: dict[tuple[str, ...], _Group], diagnosis: Diagnosis | None) -> None:
    """Count a measurement that was not traced with the only cause that has its target, else by itself."""
    target = target_of(measurement)
    alike = [group for group in groups.values() if any(target_of(m) == target for m in group.measurements)]
    traced = alike[0] if len(alike) == 1 and alike[0].births else None
    group = traced or groups.setdefault(("untraced", target), _Group())
    group.measurements.append(measurement)
    group.untraced += 1
    group.reason = group.reason or (diagnosis.reason if diagnosis else "")


def _trouble_groups(measurements: Iterable[Measurement]) -> list[_Group]:
    groups: dict[tuple[str, ...], _Group] = {}
    for measurement in measurements:
        trouble = measurement.trouble
        if trouble is None or trouble.kind not in TROUBLE_CODES:
            continue
        where = trouble.place.line_text or trouble.message.partition(":")[0]
        group = groups.setdefault((trouble.kind, where), _Group(trouble=trouble))
        group.measurements.append(measurement)
    return list(groups.values())


def _finding(group: _Group, known: Sequence[Measurement], command: CommandLine) -> Finding:
    code = TROUBLE_CODES[group.trouble.kind] if group.trouble is not None else _code(group, known)
    place = group.trouble.place if group.trouble is not None else _place(group)
    return Finding(
        code=code,
        message=_trouble_message(group) if group.trouble is not None else _nonfinite_message(group),
        where=place,
        evidence=_evidence(group),
        control=_control(group, known),
        repro=command.of(group.first.point),
    )


def _place(group: _Group) -> Place:
    return group.births[0].place if group.births else Place()


def _code(group: _Group, known: Sequence[Measurement]) -> str:
    """Named after what the finiteness depends on, where everything measured agrees that it does."""
    points = [m.point for m in group.measurements]
    if _all_beside(points, known, lambda a, b: a.values != "normal" and b.values == "normal", ("values",)):
        return NAN_VALUES
    if _all_beside(points, known, lambda a, b: _is_low(a.dtype) and not _is_low(b.dtype), ("dtype",)):
        return NAN_DTYPE
    targets = {target_of(m) for m in group.measurements}
    if OUTPUT in targets and _all_beside(points, known, lambda a, b: a.mode != b.mode, ("mode",)):
        return NAN_MODE
    return NAN_OUTPUT if OUTPUT in targets else NAN_GRADIENT


def _all_beside(
    points: Sequence[Point],
    known: Sequence[Measurement],
    differs: Callable[[Point, Point], bool],
    free: tuple[str, ...],
) -> bool:
    """Whether beside each point a finite one was measured that differs as asked, and in the `free` field alone."""
    fields = [name for name in ("length", "dtype", "mode", "values") if name not in free]
    finite = [m.point for m in known if m.is_finite]
    return all(
        any(differs(a, b) and all(getattr(a, name) == getattr(b, name) for name in fields) for b in finite)
        for a in points
    )


def _is_low(dtype: str) -> bool:
    return dtype in ("bfloat16", "float16")


def _nonfinite_message(group: _Group) -> str:
    first = group.first
    target = target_of(first)
    census = first.census(target)
    assert census is not None
    kinds = joined(
        [f"{n} {kind}" for n, kind in ((f"{census.num_nan:,}", "NaN"), (f"{census.num_inf:,}", "inf")) if n != "0"]
    )
    if target == OUTPUT:
        what = f"{census.num_bad_rows} of {census.num_rows} rows of the output are not finite"
    else:
        what = f"{census.num_bad_rows} of {census.num_rows} gradients are not finite"
    message = f"{what} ({kinds}, first in {census.first_bad}) at {_where_measured(group)}"
    if target == GRADIENTS:
        message += "; the output is finite"
    if not group.births:
        return f"{message}; where they are born is not known" + (f": {group.reason}" if group.reason else "")
    birth = group.births[0]
    return f"{message}; {birth.value} first from {birth.operation}, {birth.phase}" + (
        f"; {birth.detail}" if birth.detail else ""
    )


def _trouble_message(group: _Group) -> str:
    trouble = group.trouble
    assert trouble is not None
    in_phase = f" in {trouble.phase}" if trouble.phase else ""
    match trouble.kind:
        case "raised":
            return f"the subject raises {trouble.message}{in_phase} at {_where_measured(group)}"
        case "timeout":
            return f"the call does not return: {trouble.message} at {_where_measured(group)}"
        case _:
            return f"{trouble.message} at {_where_measured(group)}"


def _where_measured(group: _Group) -> str:
    """S=512 and 2048 in float32, train and eval."""
    points = [m.point for m in group.measurements]
    words = f"S={numbers({point.length for point in points})}"
    dtypes = sorted({point.dtype for point in points})
    values = sorted({point.values for point in points})
    modes = [mode for mode in MODES if any(point.mode == mode for point in points)]
    words += f" in {joined(dtypes)}" if dtypes != ["float32"] else ""
    words += f" on {joined(values)} input" if values != ["normal"] else ""
    return f"{words} ({', '.join(modes)})"


def _evidence(group: _Group) -> dict[str, Scalar]:
    points = [m.point for m in group.measurements]
    evidence: dict[str, Scalar] = {
        "lengths": numbers({point.length for point in points}, all_of_them=True),
        "modes": ",".join(mode for mode in MODES if any(point.mode == mode for point in points)),
        "dtypes": ",".join(sorted({point.dtype for point in points})),
        "values": ",".join(sorted({point.values for point in points})),
    }
    if group.trouble is not None:
        return {**evidence, "kind": group.trouble.kind, "phase": group.trouble.phase}
    first = group.first
    census = first.census(target_of(first))
    assert census is not None
    branches = [c.name for c in first.censuses if not c.is_finite and c.name not in (OUTPUT, GRADIENTS)]
    evidence |= {
        "target": census.name,
        "num_values": census.num_values,
        "num_nan": census.num_nan,
        "num_inf": census.num_inf,
        "first_bad": census.first_bad,
        "branches": ",".join(branches),
        "num_untraced": group.untraced,
    }
    if group.births:
        birth = group.births[0]
        modules = {each.place.module_text for each in group.births}
        evidence |= {"born": birth.value, "operation": birth.operation, "phase": birth.phase}
        evidence |= {"detail": birth.detail, "num_modules": len(modules)}
    return evidence


def _control(group: _Group, known: Sequence[Measurement]) -> str:
    """What was finite right beside the first bad point: the nearest lengths, the other modes, the other dtypes."""
    point = group.first.point
    finite = [m.point for m in known if m.is_finite]

    def alike(other: Point, *fields: str) -> bool:
        return all(getattr(other, name) == getattr(point, name) for name in fields)

    lengths = {p.length for p in finite if alike(p, "dtype", "mode", "values")}
    parts = [f"S={joined([str(length) for length in nearest(point.length, lengths)])}"] if lengths else []
    parts += [p.mode for p in finite if alike(p, "length", "dtype", "values") and p.mode != point.mode]
    parts += sorted({p.dtype for p in finite if alike(p, "length", "mode", "values") and p.dtype != point.dtype})
    parts += sorted(
        {f"{p.values} input" for p in finite if alike(p, "length", "mode", "dtype") and p.values != point.values}
    )
    verb = "returns" if group.trouble is not None else "finite"
    return f"{verb} at {joined(parts)}" if parts else ""
