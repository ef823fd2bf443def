"""HNG202 time-explodes-between-lengths

Detects: a length at which a pass takes many times as long as at its neighbour: a cliff, or time that doubles with every
further token.
Matters: the run is fast until one batch has that length; then a step takes minutes, and the watchdog ends it.
Fix: look at the line named; a fallback for lengths that do not fit a tile, or a search over subsets, is usual.

Example:
    # faulty
    y = tiled(x) if S % 64 == 0 else torch.stack([one_token(x, t) for t in range(S)], dim=1)
    # correct
    y = tiled(F.pad(x, (0, 0, 0, -S % 64)))[:, :S]
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.lengths import spread_lengths
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.time_cliffs import Cliff, Look, confirmed
from nsa_doctor.probes.cost.timing import Stopwatch
from nsa_doctor.probes.cost.work import count_work
from nsa_doctor.subject.contract import Subject

_SHORT = (8, 12, 16, 20, 24, 28)  # time that doubles with every token is seen here, before it does not end
_NUM_LENGTHS = {"smoke": 6, "quick": 12, "full": 60}
_SOON = 0.1  # seconds
_LONGEST_IN_ALL = 8.0  # seconds
_LONGEST_WITH_COUNTING = {"smoke": 10.0, "quick": 20.0, "full": 120.0}  # seconds
_LONGEST_PASS = 2.0  # seconds; what took longer is compared with the length before, and no further one is tried


def run(subject: Subject) -> Iterator[Finding]:
    mode = "no_grad" if "no_grad" in subject.modes else subject.modes[0]
    watch = Stopwatch(subject, mode)
    longest = subject.max_length if subject.profile == "full" else min(subject.max_length, 520)
    spread = spread_lengths(subject.geometry, longest, _NUM_LENGTHS[subject.profile])
    middle = [length for length in spread if length > _SHORT[-1]]
    beside = [length + 1 for length in middle if length < longest and length & (length - 1) == 0]
    lengths = sorted({*(length for length in _SHORT if length <= longest), *middle, *beside})
    watch.seconds(lengths[0], 2)  # the first pass loads and builds
    until = time.monotonic() + _LONGEST_WITH_COUNTING[subject.profile]
    looks: dict[int, Look] = {}
    for length in lengths:
        if length in _SHORT and _expected(looks) > _LONGEST_PASS:
            break
        (seconds,) = watch.seconds(length)
        # Where a pass takes long, its time tells; where it is over at once, the operations do, on any machine.
        looks[length] = Look(seconds, count_work(subject, length, mode).num_operations if seconds < _SOON else 0)
        before = list(looks)[-3:-1] if length in _SHORT else list(looks)[-2:-1]
        for other in before:
            cliff = Cliff.between(other, length, looks[other], looks[length])
            if cliff is not None and (found := confirmed(subject, watch, cliff)) is not None:
                yield _finding(subject, found, looks)
                return
        taken = sum(look.seconds for look in looks.values())
        if seconds > _LONGEST_PASS or taken > _LONGEST_IN_ALL or time.monotonic() > until:
            return


def _expected(looks: dict[int, Look]) -> float:
    """Seconds at the next length, should the last growth repeat."""
    last = [look.seconds for look in list(looks.values())[-2:]]
    return last[1] * last[1] / max(last[0], 1e-9) if len(last) == 2 else 0.0


def _finding(subject: Subject, cliff: Cliff, looks: dict[int, Look]) -> Finding:
    fine = [length for length, look in looks.items() if look.seconds * 4 < cliff.slow_seconds]
    return Finding(
        message=f"a pass takes {cliff.slow_seconds:.2g} s at S={cliff.slow} and {cliff.fast_seconds:.2g} s at "
        f"S={cliff.fast}: {cliff.ratio:.0f} times as long for {cliff.slow / cliff.fast:.3g} times the tokens"
        f"{cliff.counted}",
        where=cliff.where,
        evidence={
            "slow_length": cliff.slow,
            "fast_length": cliff.fast,
            "slow_seconds": cliff.slow_seconds,
            "fast_seconds": cliff.fast_seconds,
            "ratio": cliff.ratio,
        },
        control=f"less than a quarter of that at S={', '.join(map(str, fine))}" if fine else "",
        repro=command_for(subject, "HNG202"),
    )


def planted(subject: Subject) -> Subject:
    def searches_where_no_tile_fits(module: nn.Module, x: Tensor) -> Tensor:
        divisors = 0
        for candidate in range(5_000_000 if x.shape[1] % 32 == 1 else 1):
            divisors += candidate % 32 == 0
        return subject.forward(module, x) * min(1, divisors)

    return replace(subject, forward=searches_where_no_tile_fits)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("HNG201", "PRF101", "PRF202"),
)
