"""Which parameters belong to projections whose names say query, key or value, and to which module."""

import re
from dataclasses import dataclass
from typing import Literal

from torch import nn

from nsa_doctor.probes.internal import memory_of

Role = Literal["query", "key", "value"]
ROLES: tuple[Role, ...] = ("query", "key", "value")

_WORDS: dict[str, Role] = {
    **dict.fromkeys(("q", "query", "queries", "wq", "qs"), "query"),
    **dict.fromkeys(("k", "key", "keys", "wk", "ks"), "key"),
    **dict.fromkeys(("v", "value", "values", "wv", "vs"), "value"),
}
_BESIDE = re.compile(  # words of a projection's name that leave its role
    r"\d+|w|to|in|fc|lin|linear|proj|projections?|map|layer|dense|conv|conv[12]d|transform|weight|net|module"
    r"|up|down|a|b|heads?|embed|embedding|fn|func|gen|x|attn|attention|self|mha"
)
_DEEPEST = 3  # parts of the path of a parameter behind the projection's name


@dataclass(frozen=True)
class Projections:
    """The projections of one module, by their roles: their names, and the memory of their parameters."""

    holder: str
    names: dict[Role, tuple[str, ...]]
    memory: dict[int, Role]


def named_projections(root: nn.Module) -> list[Projections]:
    """Of every module that holds queries, keys and values apart; no memory is of two roles in them."""
    found: dict[str, dict[int, set[tuple[Role, str]]]] = {}
    for path, parameter in root.named_parameters(remove_duplicate=False):
        parts = path.split(".")
        for depth in range(1, min(_DEEPEST + 1, len(parts)) + 1):
            name, holder = parts[-depth], ".".join(parts[:-depth])
            role = role_of(name)
            if role is not None:
                found.setdefault(holder, {}).setdefault(memory_of(parameter), set()).add((role, name))
                break
    every = (_projections(holder, owned) for holder, owned in found.items())
    return [each for each in every if each is not None]


def role_of(name: str) -> Role | None:
    """What a name says: `q_proj`, `to_q`, `W_q`, `linearQ`, `query_conv`; None where it says two things or another."""
    words = [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]
    words = [word.rstrip("0123456789") or word for word in words]
    words = [word[:-4] if word.endswith("proj") and word != "proj" else word for word in words]
    roles = [_WORDS[word] for word in words if word in _WORDS]
    is_plain = all(word in _WORDS or _BESIDE.fullmatch(word) for word in words)
    return roles[0] if len(roles) == 1 and is_plain else None


def _projections(holder: str, owned: dict[int, set[tuple[Role, str]]]) -> Projections | None:
    memory = {number: {role for role, _ in said} for number, said in owned.items()}
    if any(len(roles) > 1 for roles in memory.values()):
        return None
    pairs = sorted({pair for said in owned.values() for pair in said})
    names = {role: tuple(name for other, name in pairs if other == role) for role in ROLES}
    if not all(names.values()):
        return None
    return Projections(holder, names, {number: next(iter(roles)) for number, roles in memory.items()})
