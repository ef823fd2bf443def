"""Scores between two tokens that change with a third one: those of a single query, and not against all keys.

What mixes tokens before queries and keys are made changes whole rows and columns of scores, and what sums over the
tokens between a query and a key changes many rows. Scores that are moved by a reshape, as relative positions are
(arXiv 1901.02860, appendix B), bring a part of another query's row into one row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import Softmax, softmaxes
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST_KEYS, _MOST_ROWS = 3, 2
_ROUNDINGS = 1e5


@dataclass(frozen=True)
class ThirdToken:
    """A query whose scores against some keys change with `token`, which is neither."""

    token: int
    query: int
    keys: tuple[int, ...]
    place: Place


def third_token(sp: BuiltModule, x: Tensor, token: int) -> ThirdToken | None:
    """What another token there changes in the first softmax over scores of all tokens."""
    length = x.shape[1]
    other = x.clone()
    other[:, token] = sp.input(length, len(x), seed=sp.subject.seed + 31)[:, token]
    one, changed = (_first(sp, each) for each in (x, other))
    if one is None or changed is None or one.scores.shape != changed.scores.shape:
        return None
    moved, seen = _moved(one, changed), one.seen
    moved[token], moved[:, token] = False, False
    others = torch.arange(length) != token
    is_whole_row = _are_all(moved, seen, others, axis=1)
    is_whole_column = _are_all(moved, seen, others, axis=0)
    moved[is_whole_row], moved[:, is_whole_column] = False, False
    rows = moved.any(1).nonzero().flatten().tolist()
    if not 0 < len(rows) <= _MOST_ROWS:
        return None
    keys = tuple(moved[rows[0]].nonzero().flatten().tolist())
    return ThirdToken(token, rows[0], keys, one.place) if len(keys) >= _FEWEST_KEYS else None


def _first(sp: BuiltModule, x: Tensor) -> Softmax | None:
    """The first that weighs all tokens for each."""
    return next((each for each in softmaxes(sp, x)[0] if each.is_of_tokens(x.shape[1])), None)


def _moved(one: Softmax, other: Softmax) -> Tensor:
    """Which scores [T, K] are others in any row of the batch and any head; what has no weight in both is not."""
    hidden = (one.weights == 0) & (other.weights == 0)
    size = float(one.scores.masked_fill(hidden, 0.0).abs().max())
    apart = (one.scores - other.scores).masked_fill(hidden, 0.0).abs()
    moved = apart > _ROUNDINGS * torch.finfo(apart.dtype).eps * size
    return moved.flatten(0, -3).any(0).cpu()


def _are_all(moved: Tensor, seen: Tensor, others: Tensor, axis: int) -> Tensor:
    """Which rows or columns have moved wherever they are seen, but for the token's own place."""
    counted = seen.cpu() & (others if axis else others[:, None])
    return ((moved | ~counted).all(axis)) & counted.any(axis)
