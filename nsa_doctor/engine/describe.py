"""Causes in words: what, how much, where, what was fine right beside it, and the command that shows it again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.lengths import nearest
from nsa_doctor.core.measurement import GRADIENTS, MODES, OUTPUT, TARGETS, Measurement, Point
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.core.text import joined, numbers
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.engine.measure_points import Examination, target_of
from nsa_doctor.engine.root_causes import RootCause, causes, fact_of


def findings(examination: Examination, command: CommandLine) -> list[Finding]:
    """One finding per cause, with the code of the check that answers it."""
    found = observed(examination, command)
    return [replace(finding, code=registry.answering(fact).manual.code) for fact, finding in found]


def observed(examination: Examination, command: CommandLine) -> Iterator[tuple[Fact, Finding]]:
    """The fact and the finding of every cause, for whoever knows which check it is."""
    known = [
        each
        for each in (*examination.measurements, *examination.controls)
        if each.point.length % examination.whole_multiples_of == 0 or not each.is_finite
    ]
    for cause in causes(examination):
        yield (
            fact_of(cause, known),
            Finding(
                message=_nonfinite(cause) if cause.trouble is None else _trouble(cause),
                where=cause.place,
                evidence=_evidence(cause),
                control=_control(cause, known),
                repro=command.of(cause.first.point),
            ),
        )


def _nonfinite(cause: RootCause) -> str:
    first = cause.first
    target = target_of(first)
    census = first.census(target)
    assert census is not None
    kinds = joined([f"{count:,} {kind}" for count, kind in ((census.num_nan, "NaN"), (census.num_inf, "inf")) if count])
    what = "rows of the output" if target == OUTPUT else target
    verb = "is" if census.num_bad_rows == 1 else "are"
    first_bad = f", first in {census.first_bad}" if census.first_bad else ""
    message = f"{census.num_bad_rows} of {census.num_rows} {what} {verb} not finite at {_seen_at(cause)}"
    message += f": {kinds}{first_bad}"
    message += "" if target == OUTPUT else "; the output is finite"
    if not cause.origins:
        return f"{message}; where that begins is not known" + (f": {cause.reason}" if cause.reason else "")
    origin = cause.origins[0]
    return f"{message}; the first {origin.value} comes from {origin.operation} ({origin.phase})"


def _trouble(cause: RootCause) -> str:
    trouble = cause.trouble
    assert trouble is not None
    at = f"at {_seen_at(cause)}" if trouble.phase not in ("build", "loading") else "whatever the length"
    in_phase = f" {'while' if trouble.phase == 'loading' else 'in'} {trouble.phase}" if trouble.phase else ""
    match trouble.kind:
        case "raised":
            return f"the subject raises {trouble.message}{in_phase} {at}{cause.raised}"
        case "timeout":
            return f"the call does not return: {trouble.message}{in_phase} {at}"
        case _:
            return f"{trouble.message}{in_phase if trouble.kind == 'died' else ''} {at}"


def _seen_at(cause: RootCause) -> str:
    """S=512 and 2048 in bfloat16 (train, eval)."""
    points = cause.points
    dtypes = sorted({point.dtype for point in points})
    values = sorted({point.values for point in points})
    words = f"S={numbers({point.length for point in points})}"
    words += f" in {joined(dtypes)}" if dtypes != ["float32"] else ""
    words += f" on {joined(values)} input" if values != ["normal"] else ""
    return f"{words} ({', '.join(_modes(points))})"


def _evidence(cause: RootCause) -> dict[str, Scalar]:
    points = cause.points
    evidence: dict[str, Scalar] = {
        "lengths": ",".join(str(length) for length in sorted({point.length for point in points})),
        "modes": ",".join(_modes(points)),
        "dtypes": ",".join(sorted({point.dtype for point in points})),
        "values": ",".join(sorted({point.values for point in points})),
    }
    if cause.trouble is not None:
        error = error_evidence(cause.trouble.message)
        return {**evidence, "kind": cause.trouble.kind, "phase": cause.trouble.phase, **error}
    first = cause.first
    census = first.census(target_of(first))
    assert census is not None
    branches = [c.name for c in first.censuses if not c.is_finite and c.name not in TARGETS]
    evidence |= {
        "target": census.name,
        "num_values": census.num_values,
        "num_nan": census.num_nan,
        "num_inf": census.num_inf,
        "first_bad": census.first_bad,
        "branches": ",".join(branches),
        "num_untraced": cause.num_untraced,
    }
    if cause.origins:
        origin = cause.origins[0]
        evidence |= {
            "born": origin.value,
            "operation": origin.operation,
            "phase": origin.phase,
            "detail": origin.detail,
            **next((each.growth for each in cause.origins if each.growth), {}),
        }
        evidence |= {"num_modules": len({each.place.module for each in cause.origins})}
    return evidence


def _control(cause: RootCause, known: Sequence[Measurement]) -> str:
    """What was fine right beside the first bad point: the nearest lengths, then other modes, dtypes and values."""
    point = cause.first.point
    fine = [measurement.point for measurement in known if measurement.is_finite]
    lengths = nearest(point.length, {other.length for other in fine if _differs_only(point, other, "length")})
    others = {
        name: sorted({getattr(other, name) for other in fine if _differs_only(point, other, name)})
        for name in ("mode", "dtype", "values")
    }
    if cause.trouble is None and target_of(cause.first) == GRADIENTS:
        others["mode"] = []  # no other mode has gradients
    parts = [f"at S={joined([str(length) for length in lengths])}"] if lengths else []
    parts += [f"in {joined(others[name])}" for name in ("mode", "dtype") if others[name]]
    parts += [f"on {joined(others['values'])} input"] if others["values"] else []
    verb = "returns" if cause.trouble is not None else "finite"
    return f"{verb} {', '.join(parts)}" if parts else ""


def _differs_only(point: Point, other: Point, free: str) -> bool:
    fixed = [name for name in ("length", "dtype", "mode", "values") if name != free]
    same = all(getattr(point, name) == getattr(other, name) for name in fixed)
    return same and getattr(point, free) != getattr(other, free)


def _modes(points: Sequence[Point]) -> list[str]:
    return [mode for mode in MODES if any(point.mode == mode for point in points)]
