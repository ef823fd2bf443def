"""HNG201 host-sync-per-token

Detects: code that makes the host wait for the device, by `.item()`, `nonzero`, `unique`, a boolean mask as an index or
the like, ever more often as the sequence grows: once in 32 tokens or more often. In decoding, where it does so for
each token in several layers, that is a note.
Matters: each wait costs about 20 microseconds and lets the device run dry; a GPU that is 99 % busy yields 6 tokens/s.
Fix: keep the decision on the device (`torch.where`, masks, `topk` of fixed size), or move the reading out of the loop.

Example:
    # faulty
    for t in range(S):
        if is_visible[t].any().item():  # waits for the device
            y[:, t] = attended[:, t]
    # correct
    y = torch.where(is_visible.any(-1)[:, None], attended, 0)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import by_steps
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.per_token import amounts, by_code, growing
from nsa_doctor.probes.cost.work import LineWork, Work
from nsa_doctor.subject.contract import Subject

# A layer needs about a microsecond per token on a GPU, a wait about 20: from one in 32 tokens on, waiting takes most of
# the time.
_LEAST_PER_TOKEN = 1 / 32
_LEAST_PER_STEP = 2.0  # by one line of several layers: what is read once a step for all of them is little
_LONGEST_DECODED = 96


def run(subject: Subject) -> Iterator[Finding | Note]:
    for mode in ("train", "no_grad") if subject.profile != "smoke" else ("train",):
        if mode not in subject.modes:
            continue
        works, lines = growing(subject, mode, _num_waits, _LEAST_PER_TOKEN)
        yield from (_finding(subject, works, own, [max(own, key=_num_waits)], mode) for own in by_code(lines))
        if lines:
            return
    if subject.profile == "smoke" or subject.is_slow or not (subject.offers("prefill") and subject.offers("step")):
        return
    mode = "no_grad" if "no_grad" in subject.modes else subject.modes[0]
    works, lines = growing(by_steps(subject, _LONGEST_DECODED), mode, _num_waits, _LEAST_PER_STEP / 2)
    for own in by_code(lines):
        if _per_token(works, own) >= _LEAST_PER_STEP:
            finding = _finding(subject, works, own, own, f"{mode}, in decoding")
            yield Note(message=finding.message, where=finding.where)  # experts that are looped over do so by design


def _finding(
    subject: Subject, works: Sequence[Work], own: Sequence[LineWork], counted: Sequence[LineWork], how: str
) -> Finding:
    worst, counts, per_token = max(own, key=_num_waits), _counts(works, counted), _per_token(works, counted)
    return Finding(
        message=f"the host waits for the device {per_token:.3g} times per token ({_names(worst)}): "
        f"{counts[-1]:,} times at S={works[-1].length}, {counts[0]:,} at S={works[0].length} ({how})",
        where=worst.place,
        evidence={
            "waits_per_token": per_token,
            "length": works[-1].length,
            "waits": counts[-1],
            "waits_of_all_lines": works[-1].num_waits,
            "operations": ",".join(worst.waits),
            "num_lines": len(own),
            "num_modules": len({line.place.module for line in own}),
            "mode": how,
        },
        repro=command_for(subject, "HNG201"),
    )


def _per_token(works: Sequence[Work], lines: Sequence[LineWork]) -> float:
    counts = _counts(works, lines)
    return (counts[-1] - counts[0]) / (works[-1].length - works[0].length)


def _counts(works: Sequence[Work], lines: Sequence[LineWork]) -> list[int]:
    """How often the host waits in these lines, in each pass."""
    each = [amounts(works, line.place, _num_waits) for line in lines]
    return [sum(counts) for counts in zip(*each, strict=True)]


def _num_waits(line: LineWork) -> int:
    return line.num_waits


def planted(subject: Subject) -> Subject:
    def reads_every_token(module: nn.Module, x: Tensor) -> Tensor:
        seen = 0.0
        for token in x.detach().double().flatten(2).sum(-1)[0]:
            seen += token.item()
        return subject.forward(module, x) if seen == seen else x

    return replace(subject, forward=reads_every_token)


def _names(line: LineWork) -> str:
    return ", ".join(name for name, _ in line.waits.most_common(3))


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD101", "FWD102", "HNG101"))
