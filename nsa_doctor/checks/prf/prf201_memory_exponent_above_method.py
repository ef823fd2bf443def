"""PRF201 memory-exponent-above-method

Detects: memory that grows faster with the length than the method allows: than the square (the cube where layers are
given channels of every pair of tokens, as in structure models), or than the exponent that
the subject declares (`memory_exponent`; 1.5 where it has a `geometry` of blocks). Where only the names in its
configuration speak of chosen blocks, memory that grows with the square is a note.
Matters: a score for every pair of tokens takes 4 GB per head at 32,768 tokens; sparse attention is to save that.
Fix: look at the line named; compute scores a tile of queries at a time, and compute them again in backward.

Example:
    # faulty
    y = (q @ k.mT).softmax(-1) @ v  # scores of every pair of tokens at once
    # correct
    y = F.scaled_dot_product_attention(q, k, v, scale=1)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.growth import doubling, fitted_exponent, is_affordable, is_stretched, ladder
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.named_blocks import speaks_of_chosen_blocks
from nsa_doctor.probes.cost.alive import Peak, peak_memory
from nsa_doctor.probes.cost.growing_memory import LineGrowth, fastest_growing, sizes
from nsa_doctor.probes.cost.pairs import keeps_pairs
from nsa_doctor.probes.cost.work import usual_mode
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_DENSE, _SPARSE, _OF_PAIRS = 2.0, 1.5, 3.0
_MOST_BYTES = 1 << 30
_MOST_OPERATIONS = 7_000
_NUM_LENGTHS = 7
_TILED = 768


def run(subject: Subject) -> Iterator[Finding | Note]:
    by_method = _DENSE if subject.geometry is None else _SPARSE
    allowed = subject.memory_exponent or (_OF_PAIRS if keeps_pairs(built(subject)) else by_method)
    longest = min(subject.max_length, 512 if subject.profile != "full" else 2048)
    mode = usual_mode(subject)
    peaks = ladder(doubling(longest, _NUM_LENGTHS), lambda length: peak_memory(subject, length, mode), _costs)
    if len(peaks) < 3:
        raise NotComparableError(f"memory was measured at {len(peaks)} lengths only, and three are needed")
    if fastest_growing(peaks, allowed) is not None:  # of short sequences every block is chosen, and one tile holds all
        beyond = [length for length in doubling(max(_TILED, 4 * longest), _NUM_LENGTHS) if length > longest]
        peaks += _measured_on(subject, peaks, [length for length in beyond if length <= subject.longest])
    if (fastest := fastest_growing(peaks, allowed)) is not None:
        if is_stretched(peaks, _costs):
            raise NotComparableError(f"memory was measured up to S={peaks[-1].length} only, which may be one chunk")
        yield _finding(subject, peaks, fastest, allowed)
    elif (
        allowed == _DENSE
        and (fastest := fastest_growing(peaks, _SPARSE))
        and speaks_of_chosen_blocks(built(subject).module)
    ):
        message = f"memory allocated here grows with the power {fastest.exponent:.2f} of the length "
        message += f"({sizes(peaks, fastest.place)}), and the names in its configuration speak of chosen blocks, which "
        yield Note(message=f"{message}need no such tensor: memory_exponent of an Adapter makes it a finding")


def _measured_on(subject: Subject, peaks: Sequence[Peak], lengths: Sequence[int]) -> Iterator[Peak]:
    """What follows the measured ones, as far as it can be afforded."""
    before, last = peaks[-2:]
    for length in lengths:
        if not is_affordable(before, last, length, _costs):
            return
        before, last = last, peak_memory(subject, length, usual_mode(subject))
        yield last


def _finding(subject: Subject, peaks: list[Peak], fastest: LineGrowth, allowed: float) -> Finding:
    last, worst = peaks[-1], fastest.place
    whole = fitted_exponent([peak.length for peak in peaks[-4:]], [peak.bytes for peak in peaks[-4:]])
    return Finding(
        message=f"memory allocated here grows with the power {fastest.exponent:.2f} of the length, and "
        f"the method allows {allowed:g}: {sizes(peaks, worst)}, as much as {fastest.share:.0%} of the peak with the "
        "like",
        where=worst,
        evidence={
            "exponent": fastest.exponent,
            "allowed": allowed,
            "share_of_peak": fastest.share,
            "length": last.length,
            "bytes": last.by_place[worst],
            "peak_bytes": last.bytes,
            "peak_exponent": whole.value if whole else None,
            "peak_exponent_low": whole.low if whole else None,
            "peak_exponent_high": whole.high if whole else None,
            "mode": usual_mode(subject),
        },
        repro=command_for(subject, "PRF201"),
    )


def planted(subject: Subject) -> Subject:
    def scores_every_pair(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        hidden = output.flatten(2)[..., :8]
        pairs = (hidden[:, :, None, None] * hidden[:, None, :, None] * hidden[:, None, None, :]).sum(-1)
        return output + 0 * pairs.mean()

    return replace(subject, forward=scores_every_pair)


def _costs(peak: Peak) -> list[tuple[float, float]]:
    return [(peak.bytes, _MOST_BYTES), (peak.num_operations, _MOST_OPERATIONS)]


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"))
