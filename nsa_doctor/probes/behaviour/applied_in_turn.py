"""Functions that are given what another one gave, with nothing between but another layout: a softmax, then a log."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.graph_nodes import VIEWS, computing, kind_of, maker_of
from nsa_doctor.probes.tensors.shares import are_shares_of_one

_PASSED = VIEWS | {"Gather", "IndexSelect", "Take", "TakeAlongDim"}
_MAKING = ("softmax", "sigmoid", "softplus", "expit")
_OF_ONE = "Rsub"


@dataclass(frozen=True)
class InTurn:
    """A function, what it was given, in words, and the lines that call it and that made what it was given.

    `least` is the smallest value given; `are_shares` along the axis of the function; `is_from_finite` where what was
    made was made of finite values alone.
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

    `also_through` are kinds of autograd's nodes that may stand between.
    """
    found = watched_loss(sp, call, lambda places: _Watch(places, functions, _PASSED | set(also_through)))
    return found if isinstance(found, Caught) else found[0].found


class _Watch(TorchFunctionMode):
    """Looks at what the functions are given; a function mode is a base class by torch's design."""

    def __init__(self, places: Places, functions: Collection[str], passed: Collection[str]) -> None:
        super().__init__()
        self.found: list[InTurn] = []
        self._places, self._functions, self._passed = places, functions, passed
        self._made: dict[Any, tuple[Place, bool]] = {}  # by the node of the graph

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, given = getattr(func, "__name__", "").rstrip("_"), kwargs or {}
        x = args[0] if args else given.get("input")
        is_finite = False
        if isinstance(x, Tensor) and x.requires_grad and x.is_floating_point() and x.numel() and not is_transformed(x):
            if name in self._functions:
                self._look(name, x, given.get("dim", args[1] if len(args) > 1 else -1))
            is_finite = name in _MAKING and bool(isfinite(x.detach()).all())
        answer = func(*args, **given)
        if name in _MAKING and isinstance(answer, Tensor) and answer.grad_fn is not None:
            self._made.setdefault(answer.grad_fn, (self._places.here()[0], is_finite))
        return answer

    def _look(self, name: str, x: Tensor, axis: Any) -> None:
        node, words = maker_of(x, self._passed), "the result of a"
        if kind_of(node) == _OF_ONE and node.next_functions:
            node, words = computing(node.next_functions[0][0], self._passed), "one less the result of a"
        kind = kind_of(node).lower()
        place, is_own = self._places.here()
        if kind not in _MAKING or not is_own:
            return
        made, is_from_finite = self._made.get(node, (None, False))
        shares = kind == "softmax" and are_shares_of_one(x, axis if isinstance(axis, int) else -1)
        least = float(x.detach().min())
        self.found.append(InTurn(name, f"{words} {kind}", least, shares, is_from_finite, place, made))
