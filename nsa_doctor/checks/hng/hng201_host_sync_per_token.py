"""HNG201 host-sync-per-token

Detects: code that makes the host wait for the device, by `.item()`, `nonzero`, `unique`, a boolean mask as an index or
the like, ever more often as the sequence grows: once in 32 tokens or more often.
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

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.per_token import amounts, by_code, growing
from nsa_doctor.probes.cost.work import LineWork
from nsa_doctor.subject.contract import Subject

# A layer needs about a microsecond per token on a GPU, a wait about 20: from one in 32 tokens on, waiting takes most of
# the time.
_LEAST_PER_TOKEN = 1 / 32


def run(subject: Subject) -> Iterator[Finding]:
    for mode in ("train", "no_grad") if subject.profile != "smoke" else ("train",):
        if mode not in subject.modes:
            continue
        works, lines = growing(subject, mode, lambda line: line.num_waits, _LEAST_PER_TOKEN)
        for own in by_code(lines):
            worst = max(own, key=lambda line: line.num_waits)
            counts = amounts(works, worst.place, lambda line: line.num_waits)
            per_token = (counts[-1] - counts[0]) / (works[-1].length - works[0].length)
            yield Finding(
                message=f"the host waits for the device {per_token:.3g} times per token ({_names(worst)}): "
                f"{counts[-1]:,} times at S={works[-1].length}, {counts[0]:,} at S={works[0].length} ({mode})",
                where=worst.place,
                evidence={
                    "waits_per_token": per_token,
                    "length": works[-1].length,
                    "waits": counts[-1],
                    "waits_of_all_lines": works[-1].num_waits,
                    "operations": ",".join(worst.waits),
                    "num_lines": len(own),
                    "num_modules": len({line.place.module for line in own}),
                    "mode": mode,
                },
                repro=command_for(subject, "HNG201"),
            )
        if lines:
            return


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
