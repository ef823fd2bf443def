"""What the checks of training loops share: whose optimizer steps, how far it moves, and with which gradients."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from nsa_doctor.probes.model.stepping import Step

_NOISE_FACTOR = 10.0
_LEAST_RATE = 2e-7  # fine-tuning by preferences goes down to 5e-7
_LEAST_CHANGE = 1e-4  # of the size of the parameters


def optimizer_notes(steps: Sequence[Step], *, may_have_own: bool) -> Iterator[str]:
    """Who moves the parameters, where it is not the optimizer that the loop is handed; and a rate of zero."""
    if (own := _own(steps)) and not may_have_own:
        yield f"the loop steps an optimizer of its own ({own}), not the one that it is handed"
    elif not any(taken.num_calls for taken in steps):
        yield "the loop moves the parameters without any optimizer"
    if steps[0].squared_gradient and not steps[0].moved():
        yield f"the first of {len(steps)} steps moves nothing, though it has gradients: a rate of 0 wastes its batch"


def why_nothing_moves(steps: Sequence[Step]) -> str:
    """What was seen of the optimizer."""
    own = _own(steps)
    if not any(taken.num_calls for taken in steps):
        return "the optimizer given is never asked to step"
    if own and not any(taken.held for taken in steps):
        return f"it steps an optimizer of its own ({own}), which holds no parameter of the module"
    if not any(taken.squared_gradient for taken in steps):
        return "when the optimizer steps, there are no gradients or only zeros"
    return "the optimizer steps with gradients that are not zero"


def holder_text(still: Sequence[str], steps: Sequence[Step]) -> str:
    """That the optimizer which steps does not hold them, where that is so."""
    held = frozenset[str]().union(*(taken.held for taken in steps))
    if held & set(still) or not any(taken.num_calls for taken in steps):
        return ""
    own = _own(steps)
    return f": the optimizer that steps{f' ({own}, of its own)' if own else ''} does not hold them"


def too_slow(steps: Sequence[Step]) -> str:
    """How little steps move that are made at a tiny rate which does not grow, as that of a warm-up would."""
    rates = [_rate(taken) for taken in steps]
    change = max(taken.relative_change for taken in steps)
    is_growing = any(later > 1.01 * earlier for earlier, later in pairwise(rates))
    if is_growing or not 0 < max(rates) <= _LEAST_RATE or change > _LEAST_CHANGE:
        return ""
    return (
        f"move the parameters by {change:.1g} of their size each, at a learning rate of {max(rates):.1g} (at least "
        f"{_LEAST_RATE:g})"
    )


def differs(name: str, second: Step, alone: Step, once_more: Step) -> bool:
    """Whether a gradient is another than without a step before, beyond what repeating changes."""
    change = float((second.gradients[name] - alone.gradients[name]).double().norm())
    return not (change <= _NOISE_FACTOR * float((once_more.gradients[name] - alone.gradients[name]).double().norm()))


def differing(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float, start: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Names whose values are others by more than that share of their size, or that one of the two lacks.

    Their size is how far they are from where they start, where that is given; rounding of the values is allowed then.
    """
    names = [name for name in one.keys() ^ other.keys() if bool((dict(one) | dict(other))[name].any())]
    for name in one.keys() & other.keys():
        a, b = one[name].to_dense().double(), other[name].to_dense().double()
        begun = 0.0 if start is None or name not in start else start[name].double()  # a part that was added since
        bound = tolerance * float((a - begun).norm())
        if start is not None and one[name].is_floating_point():
            bound += torch.finfo(one[name].dtype).eps * float(a.norm())
        if not float((a - b).norm()) <= bound:
            names.append(name)
    return sorted(names)


def share_of(stale: list[str], first: Mapping[str, Tensor], second: Step, alone: Step) -> float:
    """How many times the first step's gradient the difference holds, by projection."""
    product = squares = 0.0
    for name in stale:
        if name in first:
            old = first[name].double()
            product += float(((second.gradients[name] - alone.gradients[name]).double() * old).sum())
            squares += float(old.square().sum())
    return product / squares if squares else math.nan


def _rate(taken: Step) -> float:
    """The largest learning rate; of a loop without an optimizer, how far it moves by how long a gradient."""
    if taken.rates or taken.num_calls:
        return max(taken.rates, default=float("inf"))
    change = sum(float((taken.after[name] - value).double().square().sum()) for name, value in taken.before.items())
    return float((change / taken.squared_gradient) ** 0.5) if taken.squared_gradient else float("inf")


def _own(steps: Sequence[Step]) -> str:
    return " and ".join(dict.fromkeys(name for taken in steps for name in taken.own))
