"""Which names say that a value is a standard deviation, a variance, or the logarithm of one."""

import re
from dataclasses import dataclass

DEVIATION, VARIANCE = 1, 2  # as powers of the deviation

_SURE = {
    **dict.fromkeys(("std", "stds", "stddev", "stddevs", "stdev", "stdevs", "deviation", "deviations"), DEVIATION),
    **dict.fromkeys(("var", "variance", "variances"), VARIANCE),
}
_LOOSE = {"sigma": DEVIATION, "sigmas": DEVIATION}  # which some call a variance
_LOGARITHM = re.compile(r"^(?:log|ln)(?=std|var|sigma|scale)")
_SQUARED = {"sq", "squared", "square"}
_OF_ANOTHER_THING = {
    *("sqrt", "rsqrt", "inv", "inverse", "recip", "reciprocal", "precision", "half", "raw", "pre", "logit", "logits"),
    *("rho", "free", "ratio", "loss", "mean", "grad", "net", "layer", "head", "proj", "linear", "fc", "fn", "func"),
    *("type", "name", "num", "idx", "index", "size", "is", "use", "learn", "learned", "param", "params", "embed"),
    *("embedding", "env", "class", "exp", "mask", "weight", "bias", "factor", "dim", "axis", "unconstrained"),
}


@dataclass(frozen=True)
class Named:
    """The power of the deviation that a name stands for; is_sure: no other is called so; is_log: its logarithm."""

    power: int
    is_sure: bool
    is_log: bool


def named(name: str) -> Named | None:
    """What a name says; None where it says nothing, or two things."""
    if name[:1].isupper() and not name.isupper():
        return None  # Sigma, by itself, is a covariance
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if not words or words[-1] == "2" or set(words) & _OF_ANOTHER_THING:
        return None  # std2 is the second of two, or the square
    words = [word for word in words if not word.isdigit()]
    if words in (["scale"], ["log", "scale"], ["logscale"]):
        return Named(DEVIATION, False, len(words) == 2 or words == ["logscale"])
    is_log = any(word in ("log", "ln") or _LOGARITHM.match(word) for word in words)
    words = [_LOGARITHM.sub("", word) for word in words]
    powers = {(_SURE | _LOOSE)[word] for word in words if word in _SURE or word in _LOOSE}
    if "scale" in words or len(powers) != 1 or ("std" in words and "var" in words):
        return None
    power = powers.pop()
    if set(words) & _SQUARED:
        return Named(VARIANCE, True, is_log) if power == DEVIATION else None
    return Named(power, bool(set(words) & set(_SURE)), is_log)
