"""PRF201 memory-exponent-above-method

Detects: memory that grows faster with the length than the method allows: than the square, or than the exponent that
the subject declares (`memory_exponent`; 1.5 for native sparse attention).
Matters: a score for every pair of tokens takes 4 GB per head at 32,768 tokens; sparse attention is to save that.
Fix: look at the line named; compute scores a tile of queries at a time, and compute them again in backward.

Example:
    # faulty
    y = (q @ k.mT).softmax(-1) @ v  # scores of every pair of tokens at once
    # correct
    y = F.scaled_dot_product_attention(q, k, v, scale=1)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.growth import doubling, fitted_exponent, ladder, least_exponent
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import again
from nsa_doctor.core.text import short_bytes
from nsa_doctor.probes.cost.alive import Peak, peak_memory
from nsa_doctor.probes.cost.work import usual_mode
from nsa_doctor.subject.contract import Subject

_DENSE = 2.0
_MARGIN = 0.25  # half way between exponents that methods have: 1.5 and 2
_LEAST_SHARE = 0.25  # of the peak; what grows fastest and is still small may be a mask, or a tile not yet full
_MOST_BYTES = 1 << 30
_MOST_OPERATIONS = 7_000
_NUM_LENGTHS = 7


def run(subject: Subject) -> Iterator[Finding]:
    allowed = subject.memory_exponent or _DENSE
    longest = min(subject.max_length, 512 if subject.profile != "full" else 2048)
    mode = usual_mode(subject)
    peaks = ladder(doubling(longest, _NUM_LENGTHS), lambda length: peak_memory(subject, length, mode), _costs)
    if len(peaks) < 3:
        raise NotComparableError(f"memory was measured at {len(peaks)} lengths only, and three are needed")
    lengths, last = [peak.length for peak in peaks], peaks[-1]
    exponents = {
        place: least_exponent(lengths, [peak.by_place.get(place, 0) for peak in peaks]) for place in last.by_place
    }
    growing = [place for place, exponent in exponents.items() if exponent > allowed + _MARGIN]
    share = sum(last.by_place[place] for place in growing) / max(1, last.bytes)
    if share < _LEAST_SHARE:
        return
    worst = max(growing, key=lambda place: last.by_place[place])
    whole = fitted_exponent(lengths[-4:], [peak.bytes for peak in peaks[-4:]])
    yield Finding(
        message=f"memory allocated here grows with the power {exponents[worst]:.2f} of the length, and "
        f"the method allows {allowed:g}: {_sizes(peaks, worst)}, as much as {share:.0%} of the peak with the like",
        where=worst,
        evidence={
            "exponent": exponents[worst],
            "allowed": allowed,
            "share_of_peak": share,
            "length": last.length,
            "bytes": last.by_place[worst],
            "peak_bytes": last.bytes,
            "peak_exponent": whole.value if whole else None,
            "peak_exponent_low": whole.low if whole else None,
            "peak_exponent_high": whole.high if whole else None,
            "mode": mode,
        },
        repro=again(subject, "PRF201"),
    )


def planted(subject: Subject) -> Subject:
    def scores_every_pair(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        hidden = output.flatten(2)[..., :8]
        pairs = (hidden[:, :, None, None] * hidden[:, None, :, None] * hidden[:, None, None, :]).sum(-1)
        return output + 0 * pairs.mean()

    return replace(subject, forward=scores_every_pair)


def _sizes(peaks: list[Peak], place: Place) -> str:
    return ", ".join(f"{short_bytes(peak.by_place.get(place, 0))} at S={peak.length}" for peak in peaks[-3:])


def _costs(peak: Peak) -> list[tuple[float, float]]:
    return [(peak.bytes, _MOST_BYTES), (peak.num_operations, _MOST_OPERATIONS)]


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"))
