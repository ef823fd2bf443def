"""PRF202 time-exponent-above-method

Detects: work that grows faster with the length than the method allows: than the square (the cube where layers are
given channels of every pair of tokens, as in structure models), or than the exponent that the
subject declares (`time_exponent`). Values computed and operations of matrix products are counted, so that no clock and
no other load has a say.
Matters: at the lengths it is tested with it passes; at those it is trained with a step takes minutes.
Fix: look at the line named: a product over three positions, or the whole prefix computed again for each token.

Example:
    # faulty
    y = torch.stack([self.attend(x[:, : t + 1])[:, -1] for t in range(S)], dim=1)
    # correct
    y = self.attend(x)  # under a causal mask
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.growth import doubling, is_stretched, ladder, least_exponent
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.pairs import keeps_pairs
from nsa_doctor.probes.cost.per_token import amounts
from nsa_doctor.probes.cost.work import LineWork, Work, count_work, usual_mode
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_DENSE, _OF_PAIRS = 2.0, 3.0
_MARGIN = 0.25  # half way between exponents that methods have, such as 1.5 and 2
_LEAST_SHARE = 0.25  # of all work; a term that is still small may be a tile not yet full
_MOST_WORK = 4e9
_MOST_OPERATIONS = 5_000
_NUM_LENGTHS = 7


def run(subject: Subject) -> Iterator[Finding]:
    mode = usual_mode(subject)
    allowed = subject.time_exponent or (_OF_PAIRS if keeps_pairs(built(subject)) else _DENSE)
    longest = min(subject.max_length, 512 if subject.profile != "full" else 2048)
    works = ladder(doubling(longest, _NUM_LENGTHS), lambda length: count_work(subject, length, mode), _costs)
    if len(works) < 3:
        raise NotComparableError(f"work was counted at {len(works)} lengths only, and three are needed")
    lengths, last = [work.length for work in works], works[-1]
    exponents = [least_exponent(lengths, amounts(works, line.place, _cost)) for line in last.lines]
    growing = [
        (line, exponent) for line, exponent in zip(last.lines, exponents, strict=True) if exponent > allowed + _MARGIN
    ]
    forward = sum(line.cost for line in last.lines)
    share = sum(line.cost for line, _ in growing) / max(1, forward)
    if share < _LEAST_SHARE:
        return
    if is_stretched(works, _costs):
        raise NotComparableError(f"work was counted up to S={last.length} only, which may be within one chunk")
    worst, exponent = max(growing, key=lambda pair: pair[0].cost)
    yield Finding(
        message=f"work done here grows with the power {exponent:.2f} of the length, and the method allows {allowed:g}: "
        f"{worst.cost:.2g} values and operations at S={last.length}, {share:.0%} of the whole with the like ({mode})",
        where=worst.place,
        evidence={
            "exponent": exponent,
            "allowed": allowed,
            "share_of_work": share,
            "length": last.length,
            "work": worst.cost,
            "whole_exponent": least_exponent(lengths, [work.cost for work in works]),
            "mode": mode,
        },
        repro=command_for(subject, "PRF202"),
    )


def planted(subject: Subject) -> Subject:
    def walks_all_paths(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        pairs = output.flatten(2)[0, :, :1] * output.flatten(2)[0, :, :1].mT
        return output + 0 * (pairs @ pairs @ pairs @ pairs @ pairs @ pairs).mean()

    return replace(subject, forward=walks_all_paths)


def _cost(line: LineWork) -> int:
    return line.cost


def _costs(work: Work) -> list[tuple[float, float]]:
    return [(work.cost, _MOST_WORK), (work.num_operations, _MOST_OPERATIONS)]


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("HNG201", "PRF101", "PRF201"),
)
