"""How scores of attention are scaled wrongly: twice, inversely, by the tokens; and what is said of what is meant."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_scale import Scores
from nsa_doctor.probes.internal import part_at

_ALIKE = 1e-4  # of two factors


def wrongly_scaled(scores: Scores) -> tuple[str, Place] | None:
    """What is wrong with how these scores are scaled, and where."""
    size, total, usual = scores.size, scores.total, scores.size**-0.5
    times = f"scores of queries and keys of {size} channels are multiplied by"
    twice = [factor for factor in scores.factors if _is(factor.value, usual)]
    is_of_each = {factor.of for factor in twice} == {"query", "key"}  # by the channels, on purpose, in two halves
    if len(twice) > 1 and _is(total, usual**2) and not is_of_each:
        lines = [str(factor.place.line) for factor in twice[:2]]
        where = f"lines {' and '.join(lines)}" if lines[0] != lines[1] else f"line {lines[0]} and by its call"
        return f"{times} {usual:.4g} twice, in {where}: by {total:.4g} in all", twice[0].place
    halves = [factor for factor in scores.factors if _is(factor.value, usual**0.5)]
    if len(twice) == 1 and {factor.of for factor in halves} == {"query", "key"} and _is(total, usual**2):
        both_lines = " and ".join(dict.fromkeys(str(factor.place.line) for factor in halves))
        own = "by its call" if twice[0].is_default else f"in line {twice[0].place.line}"
        both = f"in lines {both_lines}, half by the queries and half by the keys, and {own}"
        return f"{times} {usual:.4g} twice, {both}: by {total:.4g} in all", twice[0].place
    if scores.factors and _is(total, 1 / usual):
        return f"{times} {total:.4g}, their square root, which is to divide them", scores.factors[0].made
    if scores.factors and _is(total, scores.in_all**0.5):
        return (
            f"scores that are the sum of products of {scores.in_all} channels in all are multiplied by {total:.4g}, "
            f"their square root, which is to divide them",
            scores.factors[0].made,
        )
    if total < 0:
        least = min(scores.factors, key=lambda factor: factor.value)
        return f"{times} {total:.4g}, so that the keys least like a query are read most", least.made
    return None


def may_follow_length(scores: Scores) -> bool:
    """Whether the factor is the inverse root of one axis of the scores, and not of the channels."""
    return bool(_axes_followed(scores)) and not _is(scores.total, scores.size**-0.5)


def scaled_by_length(scores: Scores, longer: Callable[[], Sequence[Scores]]) -> tuple[str, Place] | None:
    """What is wrong, and where, with scores that are divided by the root of the number of tokens.

    `longer` gives the scores of a pass over more tokens: the factor there has to be that of their number too.
    """
    if not may_follow_length(scores):
        return None
    for other in longer():
        is_same = (other.place, other.size) == (scores.place, scores.size) and may_follow_length(other)
        axes = _axes_followed(scores) & _axes_followed(other) if is_same else set()
        if any(scores.shape[axis] != other.shape[axis] for axis in axes):
            axis = max(axes)
            return (
                f"scores of queries and keys of {scores.size} channels are multiplied by {scores.total:.4g} at "
                f"{scores.shape[axis]} tokens and by {other.total:.4g} at {other.shape[axis]}: by the inverse root of "
                f"the number of tokens, not of the channels of a head, {scores.size**-0.5:.4g}",
                min(scores.factors, key=lambda factor: factor.value).made,
            )
    return None


def scaled_by_width(scores: Scores) -> tuple[str, Place] | None:
    """What is said of scores that are divided by the root of the channels of all heads, and where that is."""
    heads = math.prod(scores.shape[:-2])
    if not scores.factors or heads == 1 or not _is(scores.total, (heads * scores.size) ** -0.5):
        return None
    return (
        f"scores of {heads} heads of {scores.size} channels are multiplied by {scores.total:.4g}, the inverse root of "
        f"all {heads * scores.size} channels; that of the channels of a head is {scores.size**-0.5:.4g}",
        min(scores.factors, key=lambda factor: factor.value).made,
    )


def unscaled(scores: Scores, root: nn.Module) -> str:
    """What is said of scores that nothing multiplies, and of the factor that their module holds."""
    name = _held(root, scores.place, scores.size**-0.5)
    held = f", though {scores.place.module_class} holds {name} = {scores.size**-0.5:.4g}" if name else ""
    return f"scores of queries and keys of {scores.size} channels are multiplied by nothing before their softmax{held}"


def _held(root: nn.Module, place: Place, usual: float) -> str:
    """The attribute of the module there that is the usual factor and is named after scaling; empty for none."""
    module = part_at(root, place.module) if place.module_class else root
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    for name, value in held.items():
        number = float(value) if isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1) else 0.0
        if "scal" in name and (_is(number, usual) or _is(number, 1 / usual)):
            return name
    return ""


def _axes_followed(scores: Scores) -> set[int]:
    """The axes of the scores whose inverse root is the factor."""
    return {axis for axis, size in enumerate(scores.shape) if size > 1 and _is(scores.total, size**-0.5)}


def _is(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_ALIKE)
