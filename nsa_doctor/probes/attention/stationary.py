"""Whether scores between equal tokens depend on their distance alone, and whether a pass turns by angles at all."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.attention.score_watch import MASKED
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_TURNS = frozenset({"sin", "cos", "polar"})
_NAMES = re.compile(
    r"(^|[._])(rope|rotary\w*|cos\w*|sin|sin_cached|freqs?\w*|inv_freq)($|[._])|rotary|rope", re.IGNORECASE
)
_LEAST = 1e-6  # of the scores: differences below it are roundings
_ROOM = 0.5  # by how much the factor of a row may grow from one position to the next
_TOLERANCE = 0.05  # of the largest: a table may be kept in half precision, and what is turned wrongly differs wholly


@dataclass(frozen=True)
class Stray:
    """Where scores depend on more than distance: from which query on, by how much, and what is seen, in words."""

    query: int
    size: float
    text: str


def rotates(sp: BuiltModule, x: Tensor) -> bool:
    """Whether sines are taken in a pass, or something of the module bears the name of a rotation."""
    names = [name for name, _ in (*sp.module.named_modules(), *sp.module.named_buffers())]
    kinds = [type(module).__name__ for module in sp.module.modules()]
    if any(_NAMES.search(name) for name in (*names, *kinds)):
        return True
    with torch.no_grad(), _Turns() as watch:
        sp(x)
    return watch.is_seen


def strays(scores: Tensor) -> Stray | None:
    """What strays most from scores [..., S, S] that distance alone decides; None where nothing does.

    What a whole row of scores is moved by makes no difference to a softmax, and a row may be scaled by its position.
    """
    rows = scores.detach().double().flatten(0, -3)
    is_seen = torch.isfinite(rows) & (rows > MASKED)
    own = rows.diagonal(dim1=1, dim2=2)[..., None]
    above = torch.where(is_seen & is_seen.diagonal(dim1=1, dim2=2)[..., None], rows - own, torch.nan)
    size = float(torch.where(is_seen, rows.abs(), 0.0).max())
    return _by_pair(above, size) or _by_query(above, own[..., 0], size)


def _by_pair(above: Tensor, size: float) -> Stray | None:
    """Pairs one position on stand otherwise above their own token's score, whatever factor their row may have."""
    one, other = above[:, :-1, :-1], above[:, 1:, 1:]
    both = torch.isfinite(one) & torch.isfinite(other)
    one, other = torch.where(both, one, 0.0), torch.where(both, other, 0.0)
    square = one.square().sum(-1, keepdim=True)
    factor = torch.where(square > 0, (one * other).sum(-1, keepdim=True) / square.clamp_min(1e-300), 1.0)
    apart = (other - torch.where((factor - 1).abs() <= _ROOM, factor, 1.0) * one).abs()
    largest = float(torch.maximum(one.abs(), other.abs()).max())
    if not float(apart.max()) > _TOLERANCE * largest or largest <= _LEAST * size:
        return None
    head, query, key = (int(each) for each in torch.unravel_index(apart.argmax(), apart.shape))
    pair = f"that of query {query} and key {key}, and that of query {query + 1} and key {key + 1}"
    stand = f"{float(one[head, query, key]):.3g} and {float(other[head, query, key]):.3g}"
    return Stray(query, float(apart.max()), f"{pair}, stand {stand} above that of the query and its own key")


def _by_query(above: Tensor, own: Tensor, size: float) -> Stray | None:
    """A head scores all keys alike, and rises and falls with the query: keys are not turned, and queries are."""
    is_flat = torch.where(torch.isfinite(above), above.abs(), 0.0).amax((1, 2)) <= _LEAST * size
    steps = own.diff(dim=1)
    swing = torch.minimum(steps.amax(1), -steps.amin(1))
    wrong = is_flat & (swing > _TOLERANCE * own.abs().amax(1)) & torch.isfinite(own).all(1)
    if not bool(wrong.any()):
        return None
    head = int(wrong.nonzero()[0])
    query = int(steps[head].abs().argmax())
    scored = f"{float(own[head, query]):.3g} for query {query} and {float(own[head, query + 1]):.3g} for the next"
    return Stray(
        query, float(steps[head].abs().max()), f"every key has the same, {scored}: queries are turned, keys not"
    )


class _Turns(DispatchWatcher):
    def __init__(self) -> None:
        super().__init__()
        self.is_seen = False

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note whether it takes a sine."""
        self.is_seen = self.is_seen or operation_name(func) in _TURNS
        return func(*args, **kwargs)
