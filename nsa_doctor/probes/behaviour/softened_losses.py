"""Which losses are given probabilities where they take scores or logarithms: what they apply is applied twice."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state

_OF_SCORES = {
    "cross_entropy": "it takes the softmax once more",
    "log_softmax": "it takes the softmax once more",
    "logsumexp": "it takes the softmax once more",
    "binary_cross_entropy_with_logits": "it takes the sigmoid once more",
}
_OF_LOGARITHMS = ("nll_loss", "kl_div")
_MAKING = {"softmax": "a softmax", "sigmoid": "a sigmoid", "expit": "a sigmoid"}
_VIEWS = (
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Select", "Slice",
    "Index", "Clone", "ToCopy", "Expand", "Split", "Unbind", "Alias", "MaskedSelect", "Clamp",
)  # fmt: skip
_LINEAR = ("Addmm", "Mm", "Bmm", "Convolution", "MkldnnConvolution")
_NEAR_ONE = 1e-3


@dataclass(frozen=True)
class SoftenedLoss:
    """A function of a loss, what it was given and takes; the line that made what it was given, and its own."""

    function: str
    given: str
    takes: str
    made: Place | None
    place: Place


def softened_losses(sp: BuiltModule, call: Callable[[], Any]) -> list[SoftenedLoss] | Caught:
    """Those of one call, in the order in which they are computed."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places)

    def watched() -> None:
        with preserved_state(), torch.enable_grad(), uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kl_div warns of its mean
            with places.watching(), watch:
                call()

    with unobserved():
        ended = attempt(watched)
    return ended if isinstance(ended, Caught) else watch.found


class _Watch(TorchFunctionMode):
    """Follows what softmax and sigmoid give to the losses; a function mode is a base class by torch's design."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: list[SoftenedLoss] = []
        self._places = places
        self._made: dict[Any, Place] = {}  # by the node of the graph

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name in _OF_SCORES or name in _OF_LOGARITHMS:
            tensors = [each for each in (*args, *given.values()) if isinstance(each, Tensor)]
            if tensors and not any(is_transformed(each) for each in tensors):
                self._look(name, tensors, args, given)
        answer = func(*args, **given)
        if name in _MAKING and isinstance(answer, Tensor) and answer.grad_fn is not None:
            self._made.setdefault(answer.grad_fn, self._places.here()[0])
        return answer

    def _look(self, name: str, tensors: list[Tensor], args: tuple[Any, ...], given: dict[str, Any]) -> None:
        scores = tensors[0]
        node = _root(scores)
        kind = _kind(node)
        axis = _axis(name, scores, args, given)
        said = next(_faults(name, scores, kind, axis), None)
        place, is_own = self._places.here()
        if said is not None and is_own:
            self.found.append(SoftenedLoss(name, *said, self._made.get(node), place))


def _faults(name: str, scores: Tensor, kind: str, axis: int) -> Iterator[tuple[str, str]]:
    """What it was given that it does not take, and what it does."""
    shares = kind == "Softmax" or _are_shares(scores, axis)
    if name == "binary_cross_entropy_with_logits" and kind in ("Sigmoid", "Softmax"):
        yield f"the probabilities of {'a sigmoid' if kind == 'Sigmoid' else 'a softmax'}", _OF_SCORES[name]
    elif name in ("log_softmax", "logsumexp") and kind == "Softmax" and _are_shares(scores, axis):
        yield "the probabilities of a softmax", _OF_SCORES[name]
    elif name == "cross_entropy" and scores.requires_grad and _are_shares(scores, axis):
        yield "probabilities, which add up to one", _OF_SCORES[name]
    elif name in _OF_LOGARITHMS and shares and _are_shares(scores, axis):
        yield "probabilities, which add up to one", "it takes their logarithms"
    elif name == "nll_loss" and kind in _LINEAR and not _are_shares(scores.exp(), axis):
        yield "scores as a layer gives them", "it takes logarithms of probabilities"


def _axis(name: str, scores: Tensor, args: tuple[Any, ...], given: dict[str, Any]) -> int:
    """The axis of the classes."""
    if name in ("log_softmax", "logsumexp"):
        axis = given.get("dim", args[1] if len(args) > 1 else -1)
        return axis if isinstance(axis, int) else -1
    return 1 if name in ("cross_entropy", "nll_loss") and scores.ndim > 1 else -1


def _are_shares(values: Tensor, axis: int) -> bool:
    """Whether they are shares of one along the axis, in many places, and not all in one place or equal."""
    if values.ndim == 0 or not values.is_floating_point() or values.shape[axis] < 2 or values.numel() < 4:
        return False
    shares = values.detach().double()
    if not bool((shares >= 0).all()) or bool((shares.amax(axis) - shares.amin(axis) < _NEAR_ONE**2).all()):
        return False
    return bool(((shares.sum(axis) - 1).abs() < _NEAR_ONE).all())


def _root(tensor: Tensor) -> Any:
    """The node that computed it, behind those that lay it out in another way."""
    node: Any = tensor.grad_fn
    while node is not None and _kind(node) in _VIEWS and node.next_functions:
        node = node.next_functions[0][0]
    return node


def _kind(node: Any) -> str:
    return "" if node is None else str(node.name()).partition("Backward")[0]
