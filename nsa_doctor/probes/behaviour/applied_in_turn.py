"""Functions that are given what another one gave, with nothing between but another layout: a softmax, then a log."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.graph_nodes import VIEWS, behind, computing, is_of_data, kind_of, maker_of
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.probes.tensors.shares import are_parts_of_one, are_shares_of_one

_PASSED = VIEWS | {"Gather", "IndexSelect", "Take", "TakeAlongDim"}
_MAKING = ("softmax", "softmin", "sigmoid", "softplus", "expit")
_OF_ONE = "Rsub"


@dataclass(frozen=True)
class InTurn:
    """A function, what it was given, in words, and the lines that call it and that made what it was given.

    `least` is the smallest value given; `are_shares` along the axis of the function; `is_from_finite` where it was made
    of finite values alone, and of more than parameters.
    """

    function: str
    given: str
    least: float
    are_shares: bool
    is_from_finite: bool
    place: Place
    made: Place | None


def applied_in_turn(
    sp: BuiltModule, call: Callable[[], Any], functions: Collection[str], also_through: Collection[str] = ()
) -> list[InTurn] | Caught:
    """Of one call, those functions whose input a softmax, a sigmoid or a softplus gave, in the order they are called.

    What the answer, or what the call goes back through, does not read is only looked at, and left out.
    `also_through` are kinds of autograd's nodes that may stand between.
    """
    found = watched_loss(sp, call, lambda places: _Watch(places, functions, _PASSED | set(also_through)))
    if isinstance(found, Caught):
        return found
    watch, answer = found
    read = behind(each.grad_fn for each in (*watch.ends, *tensors_in(answer)))
    return [each for each, answer in watch.found if answer.grad_fn in read]


class _Watch(TorchFunctionMode):
    """Looks at what the functions are given; a function mode is a base class by torch's design."""

    def __init__(self, places: Places, functions: Collection[str], passed: Collection[str]) -> None:
        super().__init__()
        self.found: list[tuple[InTurn, Tensor]] = []
        self.ends: list[Tensor] = []
        self._places, self._functions, self._passed = places, functions, passed
        self._made: dict[Any, tuple[Place, bool]] = {}  # by the node of the graph

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, given = getattr(func, "__name__", "").rstrip("_"), kwargs or {}
        x = args[0] if args else given.get("input")
        is_finite, seen = False, None
        if name == "backward" and isinstance(x, Tensor):
            self.ends.append(x)
        if isinstance(x, Tensor) and x.requires_grad and x.is_floating_point() and x.numel() and not is_transformed(x):
            if name in self._functions:
                seen = self._seen(name, x, given.get("dim", args[1] if len(args) > 1 else -1))
            is_finite = name in _MAKING and bool(isfinite(x.detach()).all())
        answer = func(*args, **given)
        if seen is not None and isinstance(answer, Tensor):
            self.found.append((seen, answer))
        if name in _MAKING and isinstance(answer, Tensor) and answer.grad_fn is not None:
            self._made.setdefault(answer.grad_fn, (self._places.here()[0], is_finite))
        return answer

    def _seen(self, name: str, x: Tensor, axis: Any) -> InTurn | None:
        node, words = maker_of(x, self._passed), "the result of a"
        if kind_of(node) == _OF_ONE and node.next_functions:
            node, words = computing(node.next_functions[0][0], self._passed), "one less the result of a"
        kind = kind_of(node).lower()
        place, is_own = self._places.here()
        if kind not in _MAKING or not is_own:
            return None
        made, is_from_finite = self._made.get(node, (None, False))
        shown = torch.where(x.detach() < 0, torch.zeros_like(x), x.detach())  # what is hidden between the two
        is_whole = bool((x >= 0).all())
        axis = axis if isinstance(axis, int) else -1
        shares = kind == "softmax" and (are_shares_of_one(x, axis) if is_whole else are_parts_of_one(shown, axis))
        least = float(x.detach().min())
        return InTurn(name, f"{words} {kind}", least, shares, is_from_finite and is_of_data(node), place, made)
