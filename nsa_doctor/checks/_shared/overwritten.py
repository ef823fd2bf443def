"""What the checks of overwritten memory share: the passes they make, who wrote, and what it does to gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.lengths import spread_lengths
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.saved import Saved, SavedWatch, num_differing
from nsa_doctor.probes.hooks.writers import Write, WriterWatch
from nsa_doctor.probes.model.training import Trial, trials
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

MOST_FINDINGS = 3
_LENGTHS: dict[Profile, tuple[int, ...]] = {"smoke": (67,), "quick": (3, 67, 131, 260), "full": ()}
_NUM_LENGTHS = 12
_MOST_LOCATED = 48  # each is compared after every operation
_NOISE_FACTOR = 10.0


@dataclass(frozen=True)
class Overwrite:
    """Saved tensors that one line was the first to write into."""

    write: Write
    saved: tuple[Saved, ...]

    @property
    def indices(self) -> frozenset[int]:
        """Which of the tensors saved in the pass."""
        return frozenset(saved.index for saved in self.saved)

    def finding(self, subject: Subject, code: str, trial: Trial, consequence: str, **evidence: Scalar) -> Finding:
        """Both lines, what changed, and what comes of it."""
        first, place = self.saved[0], self.write.place
        keeper = f"kept as ctx.{first.keeper} for" if first.keeper else "saved for"
        total = first.tensor.numel()
        changed = f"{first.num_changed:,} of {total:,} values changed"
        if not first.num_changed:
            changed = "none of its values changed, but the memory written into shares its version counter"
        message = f"the tensor {keeper} the backward of {first.operation} at {_place_text(first.place)} is overwritten "
        message += f"by {self.write.operation} at {_place_text(place)}: {changed} at {trial.label}; {consequence}"
        if not place.module_class:
            place = replace(place, module=first.place.module, module_class=first.place.module_class)
        return Finding(
            code=code,
            message=message,
            where=place,
            evidence={
                "length": trial.length,
                "saved_operation": first.operation,
                "saved_line": first.place.line_text,
                "saved_module": first.place.module_text,
                "written_operation": self.write.operation,
                "written_line": self.write.place.line_text,
                "num_values": total,
                "num_changed": first.num_changed,
                "num_saved": len(self.saved),
                "detail": f"saved by {first.operation} at {first.place}",
                **evidence,
            },
            repro=command_for(subject, code),
        )


def examined(subject: Subject) -> Iterator[Trial]:
    """Passes at lengths the profile allows, and one in eval mode, which may take another way than training."""
    if subject.lengths:
        lengths = sorted(subject.lengths)
    elif subject.profile == "full":
        lengths = spread_lengths(subject.geometry, subject.max_length, _NUM_LENGTHS)
    else:
        lengths = sorted({min(length, subject.max_length) for length in _LENGTHS[subject.profile]})
    yield from trials(subject, lengths)
    modes: tuple[Mode, ...] = () if subject.profile == "smoke" else ("eval",)
    yield from trials(replace(subject, train_step=None), lengths[-1:], modes)


def first_passes(subject: Subject) -> Iterator[tuple[Trial, SavedWatch, Mapping[str, Tensor]]]:
    """Each trial with what it saves and gives; one that raises, which FWD101 tells of with its place, is passed over.

    NotComparableError where every one does.
    """
    raised: NotComparableError | None = None
    has_any = False
    for trial in examined(subject):
        watch = SavedWatch()
        try:
            given = trial.run(watch)
        except SubjectFailedError as failure:
            if failure.phase not in ("forward", "backward"):
                raise
            raised = raised or NotComparableError(f"the subject raises in {failure.phase} at {trial.label}: {failure}")
            continue
        has_any = True
        yield trial, watch, given
    if raised is not None and not has_any:
        raise raised


def located(subject: Subject, trial: Trial, found: Sequence[Saved]) -> list[Overwrite]:
    """Who wrote into these tensors first, by repeating the pass: one group per writing line, in the order of saving."""
    frames, wanted = FrameFilter(subject.packages), frozenset(saved.index for saved in found[:_MOST_LOCATED])
    watch = WriterWatch(frames, wanted)
    trial.run(watch)
    if any(write.is_outside for write in watch.writes.values()):
        watch = WriterWatch(frames, wanted, by_line=True)
        trial.run(watch)
    groups: dict[str | Write, list[Saved]] = {}
    for index, write in sorted(watch.writes.items()):
        groups.setdefault(write.place.line_text or write, []).append(watch.saved[index])
    return [Overwrite(watch.writes[group[0].index], tuple(group)) for group in groups.values()]


def effect(plain: Mapping[str, Tensor], other: Mapping[str, Tensor], repeated: Mapping[str, Tensor]) -> list[float]:
    """Per tensor that differs beyond the noise of a repeated pass, by how much of its largest value."""
    changes = []
    for name, value in plain.items():
        change = _distance(value, other[name])
        if not (change <= _NOISE_FACTOR * _distance(value, repeated[name])):
            changes.append(change)
    return changes


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value; infinite where only one is finite, 0 where they are alike."""
    if not num_differing(a, b):
        return 0.0
    both = isfinite(a) & isfinite(b)
    if bool((isfinite(a) != isfinite(b)).any()) or not bool(both.any()):
        return float("inf")
    scale = max(float(a[both].abs().max()), float(b[both].abs().max()))
    return float((a - b)[both].abs().max()) / scale if scale else 0.0


def _place_text(place: Place) -> str:
    """File and line, the file by its name alone, and the module."""
    line = f"{Path(place.file).name}:{place.line}" if place.file else "an unknown line"
    return f"{line} in {place.module_text}" if place.module_text else line
