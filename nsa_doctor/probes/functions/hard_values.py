"""Values that kernels meet and tests do not: sharp, equal, tiny, huge, repeated, one-sided."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nsa_doctor.probes.functions.problems import Draw, Values, normal
from nsa_doctor.subject.function import Shape

_FAR = 120.0
_SHARP = 6.0


def draws(seed: int = 5) -> tuple[Draw, ...]:
    """One draw of each kind."""
    return tuple(Draw(seed=seed, values=values, about=about) for about, values in KINDS.items())


def _equal_scores(sign: float) -> Values:
    def values(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
        size = math.sqrt(_FAR / math.sqrt(shape.head))
        ones = {name: torch.ones_like(value) for name, value in normal(shape, chance).items()}
        return {"q": ones["q"] * size, "k": ones["k"] * size * sign}

    return values


def _scaled(factor: float, *names: str) -> Values:
    return lambda shape, chance: {
        name: value * factor for name, value in normal(shape, chance).items() if name in names
    }


def _sharp(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
    """Each query is a multiple of one key: that of its own position or an earlier one."""
    k = normal(shape, chance)["k"]
    last = torch.arange(shape.queries).clamp_max(shape.keys - 1)
    index = (torch.rand(shape.queries, generator=chance) * (last + 1)).long()
    q = k[:, index].repeat_interleave(shape.heads // shape.groups, 2)
    return {"q": q * _SHARP, "k": k}


def _rising(sign: float) -> Values:
    """Scores that grow with the key's position, or fall: the running maximum changes in every tile, or never."""

    def values(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
        direction = torch.randn(shape.head, generator=chance)
        direction = direction / direction.norm()
        size = math.sqrt(60.0 * math.sqrt(shape.head))
        steps = torch.arange(shape.keys) / max(1, shape.keys - 1)
        k = sign * (2 * steps - 1)[:, None] * direction * size
        small = normal(shape, chance)
        return {
            "q": direction * size + 0.1 * small["q"],
            "k": k[None, :, None].expand(shape.batch, -1, shape.groups, -1) + 0.01 * small["k"],
        }

    return values


def _repeated(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
    return {"k": normal(shape, chance)["k"][:, torch.arange(shape.keys) // 2 * 2]}


def _one_large_key(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
    k = normal(shape, chance)["k"]
    k[:, shape.keys // 2] *= 20
    return {"k": k}


def _one_sided(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
    return {name: torch.rand(value.shape, generator=chance) for name, value in normal(shape, chance).items()}


def _heavy_tailed(shape: Shape, chance: torch.Generator) -> Mapping[str, Tensor]:
    return {name: value.pow(3) / 2 for name, value in normal(shape, chance).items()}


KINDS: Mapping[str, Values] = {
    "equal scores of -120": _equal_scores(-1.0),
    "equal scores of +120": _equal_scores(1.0),
    "sharp softmax": _sharp,
    "rising scores": _rising(1.0),
    "falling scores": _rising(-1.0),
    "one large key": _one_large_key,
    "repeated keys": _repeated,
    "values from 0 to 1": _one_sided,
    "heavy tails": _heavy_tailed,
    "inputs of 1e-4": _scaled(1e-4, "q", "k", "v"),
    "queries and keys of 1e2": _scaled(1e2, "q", "k"),
    "inputs of 1e4": _scaled(1e4, "q", "k", "v"),
    "values of 1e4": _scaled(1e4, "v"),
}
