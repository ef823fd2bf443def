"""PRF401 slower-than-its-floor

Detects: a training step that takes more times as long as plain dense attention of the same width than the subject may
(`max_slowdown`); `nsa-doctor throughput` holds it to the tokens per second of a file of floors too.
Matters: a loop over ranges made 6 tokens/s of 400, sixty times less; nothing was wrong but the speed.
Fix: `nsa-doctor run --select HNG,PRF` names the line where operations, waits, memory or work grow too fast.

Example:
    # faulty
    y = torch.stack([attend(q[:, t], k[:, : t + 1], v[:, : t + 1]) for t in range(S)], dim=1)
    # correct
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.dense_baseline import dense_twin
from nsa_doctor.probes.cost.timing import Stopwatch
from nsa_doctor.probes.cost.work import usual_mode
from nsa_doctor.subject.contract import Subject

_LONGEST = 256
_REPEATS = 5
_MOST_ROUNDS = 6  # where rounds fall on both sides of the limit
_MARGIN = 1.25  # by which the best passes of all rounds must then differ from it


def run(subject: Subject) -> Iterator[Finding]:
    limit = subject.max_slowdown
    assert limit is not None
    length, mode = min(subject.max_length, _LONGEST), usual_mode(subject)
    watch, baseline = Stopwatch(subject, mode), Stopwatch(dense_twin(subject), mode)
    for stopwatch in (watch, baseline):
        stopwatch.seconds(length)  # loads and builds
    own, plain = math.inf, math.inf  # of the best pass: other load only ever adds time
    ratios: list[float] = []
    while len(ratios) < 2 or (len(ratios) < _MOST_ROUNDS and min(ratios) <= limit < max(ratios)):
        own_now, plain_now = (min(stopwatch.seconds(length, _REPEATS)) for stopwatch in (watch, baseline))
        own, plain = min(own, own_now), min(plain, plain_now)
        ratios.append(own_now / plain_now)
        if ratios[0] < limit / 2:
            return
    ratio = own / plain
    if min(ratios) <= limit < max(ratios) and limit / _MARGIN < ratio < limit * _MARGIN:
        raise NotComparableError(
            f"{len(ratios)} rounds say {min(ratios):.0f} to {max(ratios):.0f} times as long, {limit:g} are allowed: "
            "too noisy"
        )
    if ratio <= limit:
        return
    yield Finding(
        message=f"a pass at S={length} takes {ratio:.0f} times as long as plain dense attention of the same "
        f"width, and may take {limit:g} times as long ({mode})",
        where=watch.hottest(length),
        evidence={"ratio": ratio, "allowed": limit, "length": length, "mode": mode},
        repro=command_for(subject, "PRF401"),
    )


def planted(subject: Subject) -> Subject:
    def counts_to_a_million(module: nn.Module, x: Tensor) -> Tensor:
        total = 0
        for number in range(2_000_000):
            total += number
        return subject.forward(module, x) * min(1, total)

    return replace(subject, forward=counts_to_a_million, max_slowdown=20.0)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("max_slowdown",),
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("HNG201", "HNG202", "PRF101", "PRF202"),
    answers=("below floor",),
)
