"""Whether processes of one run train on the same rows, by the checksums in their heartbeats."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.sessions import is_step

FEWEST = 4
_MOST_OF_THEM = 0.8


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Ranks that logged the same checksum at `alike` of the `steps` steps from `step` on, which all of them tell."""

    ranks: tuple[int, ...]
    step: int
    alike: int
    steps: int


def comparable_steps(record: RunRecord) -> int:
    """Steps at which two ranks or more tell what they trained on."""
    return sum(len(batches) > 1 for batches in _checksums(record).values())


def shared_rows(record: RunRecord) -> list[Shared]:
    """Groups of ranks whose batches are the same, step after step, from some step on.

    A few alike are chance where there is little data, and data that is the same at every step says nothing.
    """
    checksums = _checksums(record)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)  # by a rank and the least that has its batch
    for step in sorted(checksums):
        for ranks in _by_checksum(checksums[step]).values():
            for rank in ranks[1:]:
                alike[ranks[0], rank].append(step)
    groups: dict[int, list[Shared]] = defaultdict(list)
    for (one, other), steps in alike.items():
        both = sum(step >= steps[0] and {one, other} <= ranks.keys() for step, ranks in checksums.items())
        kinds = {checksums[step][one] for step in steps}
        if len(kinds) >= FEWEST and len(steps) >= _MOST_OF_THEM * both:
            groups[one].append(Shared(ranks=(one, other), step=steps[0], alike=len(steps), steps=both))
    return [_joined(pairs) for _, pairs in sorted(groups.items())]


def _joined(pairs: list[Shared]) -> Shared:
    least = min(pairs, key=lambda each: each.alike)
    ranks = (pairs[0].ranks[0], *sorted(each.ranks[1] for each in pairs))
    return Shared(ranks=ranks, step=max(each.step for each in pairs), alike=least.alike, steps=least.steps)


def _checksums(record: RunRecord) -> Mapping[int, Mapping[int, str]]:
    """By step and rank; the last that was logged counts."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for beat in record.beats:
        if is_step(beat) and beat.step is not None and beat.batch is not None:
            found[beat.step][beat.rank] = beat.batch
    return found


def _by_checksum(checksums: Mapping[int, str]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(checksums):
        found[checksums[rank]].append(rank)
    return found
