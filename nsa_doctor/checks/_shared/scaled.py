"""How scores of attention are scaled wrongly: twice, or by the inverse; and what is said where nothing scales them."""

import math

from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_scale import Scores

_ALIKE = 1e-4  # of two factors


def wrongly_scaled(scores: Scores) -> tuple[str, Place] | None:
    """What is wrong with how these scores are scaled, and where."""
    size, total, usual = scores.size, scores.total, scores.size**-0.5
    times = f"scores of queries and keys of {size} channels are multiplied by"
    twice = [factor for factor in scores.factors if _is(factor.value, usual)]
    is_of_each = {factor.of for factor in twice} == {"query", "key"}  # by the channels, on purpose, in two halves
    if len(twice) > 1 and _is(total, usual**2) and not is_of_each:
        lines = " and ".join(str(factor.place.line) for factor in twice[:2])
        return f"{times} {usual:.4g} twice, in lines {lines}: by {total:.4g} in all", twice[0].place
    if scores.factors and _is(total, 1 / usual):
        return f"{times} {total:.4g}, their square root, which is to divide them", scores.factors[0].place
    return None


def unscaled(scores: Scores, root: nn.Module) -> str:
    """What is said of scores that nothing multiplies, and of the factor that their module holds."""
    name = _held(root, scores.place, scores.size**-0.5)
    held = f", though {scores.place.module_class} holds {name} = {scores.size**-0.5:.4g}" if name else ""
    return f"scores of queries and keys of {scores.size} channels are multiplied by nothing before their softmax{held}"


def _held(root: nn.Module, place: Place, usual: float) -> str:
    """The attribute of the module there that is the usual factor and is named after scaling; empty for none."""
    module = root.get_submodule(place.module) if place.module_class else root
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    for name, value in held.items():
        number = float(value) if isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1) else 0.0
        if "scal" in name and (_is(number, usual) or _is(number, 1 / usual)):
            return name
    return ""


def _is(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_ALIKE)
