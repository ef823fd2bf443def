"""Finds where the non-finite values that reach an output or a gradient were born.

A pass is traced and its lineage walked back from what is not finite to the operations whose inputs were clean.
An operation that comes into question is cured (its newborn values made zero) and the pass repeated: it is a cause when
that changes the outcome. What comes to light only then must do so under another cure too,
or the zeros brought it about.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OTHERS, OUTPUT, Diagnosis, NonfiniteOrigin, Place, Point
from nsa_doctor.probes.hooks.lineage import Kind, Record, of_kind
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.tracer import Cause, Tracer
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.finite import holds_nonfinite, isfinite
from nsa_doctor.probes.tensors.operations import UNWRITTEN
from nsa_doctor.subject.contract import Subject

_MOST_CAUSES = 3
_MOST_PASSES = 6
_MOST_OPERATIONS = 250_000  # watched in all of these passes: some 20 s

Returned = Sequence[tuple[str, Mapping[str, Tensor]]]
Rerun = Callable[[Tracer], Returned]
"""Runs the same pass once more under a tracer; what came of it, by target."""


def diagnose(subject: Subject, point: Point, conditions: Conditions) -> Diagnosis:
    """Trace one point that was found not finite, in passes of their own with the same seed."""
    num_operations = 0

    def rerun(tracer: Tracer) -> Returned:
        nonlocal num_operations
        try:
            performance = perform(subject, point, conditions, tracer)
        finally:
            num_operations += tracer.num_operations
        return [
            (OUTPUT, {OUTPUT: performance.output}),
            (OTHERS, performance.others),
            (GRADIENTS, performance.gradients),
        ]

    with preserved_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = origins(rerun, FrameFilter(subject.packages))
        except SubjectFailedError as failure:
            reason = f"traced, the subject raises {failure.caught.sentence}"
            return Diagnosis(point=point, target=OUTPUT, reason=reason, num_operations=num_operations)
    target, births, reason = (OUTPUT, (), "the traced pass was finite") if found is None else (*found, "")
    return Diagnosis(point=point, target=target, origins=births, reason=reason, num_operations=num_operations)


def origins(rerun: Rerun, frames: FrameFilter) -> tuple[str, tuple[NonfiniteOrigin, ...]] | None:
    """The first target that is not finite, and its causes, earliest first; None when every traced pass is finite."""
    first = _trace(rerun, frames, frozenset(), poison=False)
    poison = first is None
    if first is None:
        first = _trace(rerun, frames, frozenset(), poison=True)
    if first is None:
        return None
    return first.target, tuple(_birth(cause) for cause in _distinct(_causes(first, rerun, frames, poison)))


def origins_of_one_pass(run: Rerun, frames: FrameFilter) -> tuple[NonfiniteOrigin, ...]:
    """Where the values of a single pass began, earliest first: of what will not come out the same a second time."""
    found = _trace(run, frames, frozenset(), poison=False)
    return () if found is None else tuple(_birth(origin) for origin in found.origins)


@dataclass(frozen=True)
class _Origin:
    """The start of a lineage, and the last parameter, buffer or input it went through."""

    record: Record
    kind: Kind
    holder: Record | None


@dataclass(frozen=True)
class _Pass:
    target: str
    kind: Kind
    origins: tuple[_Origin, ...]
    num_nonfinite: int
    num_operations: int


def _causes(first: _Pass, rerun: Rerun, frames: FrameFilter, poison: bool) -> list[_Origin]:
    """The origins whose cure changes what comes of the pass; fewer are tried where a pass is long."""
    causes: list[_Origin] = []
    cured: frozenset[Cause] = frozenset()
    current: _Pass | None = first
    known = _keys(first)
    for _ in range(min(_MOST_PASSES, 1 + _MOST_OPERATIONS // max(1, first.num_operations))):
        candidates = _candidates(current, cured)
        if not candidates or len(causes) == _MOST_CAUSES:
            break
        earliest = candidates[0]
        if _root(earliest).record.key not in known:
            again = _trace(rerun, frames, cured, poison, cure=1.0)
            if _root(earliest).record.key not in _keys(again):
                break
        cured |= {_root(earliest).record.key}
        before, current = current, _trace(rerun, frames, cured, poison)
        if current is not None and current.target != first.target:
            current = None
        if _has_changed(before, current):
            causes.append(earliest)
    return causes or list(first.origins[:1])


def _trace(rerun: Rerun, frames: FrameFilter, cured: frozenset[Cause], poison: bool, cure: float = 0.0) -> _Pass | None:
    """One traced pass; None when all that came of it is finite."""
    tracer = Tracer(Places(frames), cured, poison, cure)
    for target, tensors in rerun(tracer):
        bad = [tensor.detach() for tensor in tensors.values() if holds_nonfinite(tensor)]
        if bad:
            kind: Kind = "NaN" if any(bool(of_kind(tensor, "NaN").any()) for tensor in bad) else "inf"
            number = sum(int((~isfinite(tensor)).sum()) for tensor in bad)
            return _Pass(target, kind, tuple(_origins(tracer, bad, kind)), number, tracer.num_operations)
    return None


def _origins(tracer: Tracer, tensors: list[Tensor], kind: Kind) -> list[_Origin]:
    """Every record at the start of the lineage of these tensors, earliest first."""
    starts = [record for tensor in tensors for record in tracer.lineage.sources(tensor, kind)]
    return sorted(_walk_back(starts, kind), key=lambda origin: origin.record.index)


def _walk_back(starts: list[Record], kind: Kind) -> list[_Origin]:
    waiting = [(record, record if record.holder else None) for record in starts]
    seen: set[int] = set()
    found: dict[Cause, _Origin] = {}
    while waiting:
        record, holder = waiting.pop()
        if id(record) in seen:
            continue
        seen.add(id(record))
        parents = record.parents.get(kind, [])
        waiting += [(parent, parent if parent.holder else holder) for parent in parents]
        if not parents:
            known = found.get(record.key)
            if known is None or record.index < known.record.index:
                found[record.key] = _Origin(record, kind, holder)
    return list(found.values())


def _keys(traced: _Pass | None) -> set[Cause]:
    return set() if traced is None else {_root(origin).record.key for origin in traced.origins}


def _candidates(current: _Pass | None, cured: frozenset[Cause]) -> list[_Origin]:
    return [] if current is None else [origin for origin in current.origins if _root(origin).record.key not in cured]


def _has_changed(before: _Pass | None, after: _Pass | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (before.target, before.kind, before.num_nonfinite) != (after.target, after.kind, after.num_nonfinite)


def _distinct(causes: list[_Origin]) -> list[_Origin]:
    """One of each set of causes that were fed by the same infinity: one cause, one finding."""
    kept: list[_Origin] = []
    feeders: set[Cause] = set()
    for cause in causes:
        root = _root(cause)
        feeding = {root.record.key} | ({o.record.key for o in _fed_by(cause)} if root is cause else set())
        if not feeding & feeders:
            kept.append(cause)
        feeders |= feeding
    return kept


def _fed_by(origin: _Origin) -> list[_Origin]:
    """Where the infinities came from that a NaN's birth had among its inputs, earliest first."""
    found = _walk_back(origin.record.parents.get("inf", []), "inf") if origin.kind == "NaN" else []
    return sorted(found, key=lambda feeding: feeding.record.index)


def _root(origin: _Origin) -> _Origin:
    """Infinity that was computed, not put there as a mask, is where the trouble with a NaN began."""
    computed = [feeding for feeding in _fed_by(origin) if not _is_constant(feeding.record)]
    return computed[0] if computed and not origin.record.masks else origin


def _birth(nan: _Origin) -> NonfiniteOrigin:
    """The origin in words."""
    fed_by, origin = _fed_by(nan), _root(nan)
    details = []
    if origin.record.holder:
        verb = "was read" if origin.record.operation in UNWRITTEN else "held it"
        details.append(f"{origin.record.holder} {verb}")
    elif origin.holder is not None:
        details.append(f"it came in through {origin.holder.holder}")
    if origin is not nan:
        details.append(f"NaN follows in {_operation_text(nan.record)}")
    elif fed_by:
        details.append(f"its input held inf from {_operation_text(fed_by[0].record)}")
    grown = _growth(origin.record)
    if grown is not None:
        details.append(f"values at an end of the dtype's range come from {_operation_text(grown)}")
    place = origin.record.place
    if origin.holder is not None and not place.module:
        place = replace(place, module=origin.holder.place.module, module_class=origin.holder.place.module_class)
    return NonfiniteOrigin(
        value=origin.kind,
        operation=origin.record.operation,
        phase=origin.record.phase,
        place=place,
        detail="; ".join(details),
        grown_at=Place() if grown is None else grown.place,
    )


def _growth(record: Record) -> Record | None:
    """What made of ordinary values all the extreme ones that an operation was given, where that is one line."""
    births = [birth.record for birth in _walk_back(record.parents.get("extreme", []), "extreme")]
    if not births or any(map(_is_constant, births)) or len({birth.place.line_text for birth in births}) > 1:
        return None
    return births[0] if births[0].place.file and births[0].place != record.place else None


def _operation_text(record: Record) -> str:
    return f"{record.operation} at {record.place.line_text or record.place}"


def _is_constant(record: Record) -> bool:
    """Whether the infinity was written as a constant, the way masks are."""
    return bool(record.holder) or record.operation in _CONSTANTS


_CONSTANTS = frozenset(
    {
        "masked_fill", "masked_fill_", "full", "full_like", "new_full", "fill", "fill_", "scalar_tensor",
        "tensor constant", "constant_pad_nd", "index_fill", "index_fill_", "where",
    }
)  # fmt: skip
