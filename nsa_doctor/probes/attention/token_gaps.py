"""Gaps in which tokens read each other: a block left out between near and far, or two halves apart."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.model.built_module import BuiltModule

_LEAST_SHARE = 0.25  # of the tokens skip a block
_LEAST_OWN = 0.1  # of them read themselves, and do not, where places are mixed up
_MOST_SHARE = 0.25  # of a sequence is what one of them skips
_PROJECTED = ({"q", "query", "queries"}, {"k", "key", "keys", "kv"}, {"v", "value", "values", "kv"})
_FUSED = {"qkv", "wqkv"}


@dataclass(frozen=True)
class Gap:
    """`num_rows` tokens skip `size` each; one of them, and the first and the last token that it skips."""

    num_rows: int
    size: int
    token: int
    first: int
    last: int


def skipped_blocks(read: Tensor) -> Gap | None:
    """The block that many tokens skip between near and far, by [S, S]: whether a row's token reads a column's.

    What is near is read without a break, and so is all that is far, which is no less than what is skipped. None where
    any token skips more than one block on a side: sparse attention does, of whatever kind.
    """
    length, gaps = len(read), list[Gap]()
    for token in range(length):
        row = read[token].tolist()
        sides = [list(range(token - 1, -1, -1)), list(range(token + 1, length))]
        for side in sides:
            runs = _runs([row[each] for each in side])
            unread = [run for run in runs if not run[0]]
            is_last_unread = bool(runs) and not runs[-1][0]
            inner = unread[:-1] if is_last_unread else unread
            if len(inner) > 1 or (inner and is_last_unread):
                return None
            if not inner:
                continue
            _, start, size = inner[0]
            far = len(side) - start - size
            if far < size or size < 2:
                return None
            reads_near = any(row[each] for each in (token - 1, token + 1) if 0 <= each < length)
            ends = side[start], side[start + size - 1]
            if reads_near:  # as one that reads itself alone, and what came long before, may not on purpose
                gaps.append(Gap(0, size, token, min(ends), max(ends)))
    sizes = {gap.size for gap in gaps}
    tokens = {gap.token for gap in gaps}
    if len(sizes) != 1 or len(tokens) < _LEAST_SHARE * length or max(sizes) > _MOST_SHARE * length:
        return None
    one = gaps[0]
    return Gap(len(tokens), one.size, one.token, one.first, one.last)


def projects_all_three(sp: BuiltModule, x: Tensor) -> nn.Module | None:
    """The first part that has linear layers named after queries, keys and values, each given all tokens of x [B, S, …].

    Keys and values that are no projections of them, as those of a memory or of groups of channels, are another thing.
    """
    given: set[int] = set()

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim > 1 and args[0].shape[-2] == x.shape[1]:
            given.add(id(module))

    hooks = [each.register_forward_pre_hook(look) for each in sp.module.modules() if isinstance(each, nn.Linear)]
    try:
        with torch.no_grad():
            sp(x)
    finally:
        for hook in hooks:
            hook.remove()
    for part in sp.module.modules():
        words = {
            word
            for name, child in part.named_children()
            if id(child) in given
            for word in re.findall(r"[a-z]+", name.lower())
        }
        if all(words & each for each in _PROJECTED) or words & _FUSED:
            return part
    return None


def halves(read: Tensor) -> int | None:
    """Where a sequence falls in two that never read each other, while all other neighbours read one the other."""
    length = len(read)
    meet = [bool(read[token, token - 1] | read[token - 1, token]) for token in range(1, length)]
    if meet.count(False) != 1:
        return None
    at = meet.index(False) + 1
    return None if bool(read[:at, at:].any() | read[at:, :at].any()) else at


def strangers(read: Tensor) -> list[int]:
    """Tokens that read others and not themselves, where many read themselves and every token is read.

    All of them do where tokens are shifted, or what comes before is foretold; what is never read was left out. Where no
    token reads a later one, some may have a single key, which weighs one whatever they ask.
    """
    own = read.diagonal()
    apart = read.any(1) & ~own
    are_many = bool(_LEAST_OWN * len(read) <= apart.sum()) and bool(_LEAST_OWN * len(read) <= own.sum())
    is_causal = not bool(read.triu(1).any())
    return apart.nonzero().flatten().tolist() if are_many and not is_causal and bool(read.any(0).all()) else []


def _runs(values: list[bool]) -> list[tuple[bool, int, int]]:
    """Runs of equal values: the value, where it begins, how many."""
    found: list[tuple[bool, int, int]] = []
    for index, value in enumerate(values):
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1], found[-1][2] + 1)
        else:
            found.append((value, index, 1))
    return found
