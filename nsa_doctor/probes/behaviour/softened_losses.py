"""Which losses are given probabilities where they take scores or logarithms: what they apply is applied twice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.graph_nodes import VIEWS, kind_of, maker_of
from nsa_doctor.probes.tensors.shares import are_shares_of_one

_OF_SCORES = {
    "cross_entropy": "it takes the softmax once more",
    "log_softmax": "it takes the softmax once more",
    "logsumexp": "it takes the softmax once more",
    "binary_cross_entropy_with_logits": "it takes the sigmoid once more",
}
_OF_LOGARITHMS = ("nll_loss", "kl_div", "ctc_loss")
_OF_CLASSES = ("cross_entropy", "nll_loss")
_OF_DISTRIBUTIONS = "/torch/distributions/"  # Categorical takes logsumexp of scores; elsewhere it may be a maximum
_FRAMES = 8
_SHARES = "probabilities, which add up to one"
_MAKING = ("softmax", "sigmoid", "expit")
_PASSED = VIEWS | {"Clamp"}
_LINEAR = ("Addmm", "Mm", "Bmm", "Convolution", "MkldnnConvolution")


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
    found = watched_loss(sp, call, _Watch)
    return found if isinstance(found, Caught) else found[0].found


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
            attempt(lambda: self._look(name, args, given))  # of a tensor without values nothing can be said
        answer = func(*args, **given)
        if name in _MAKING and isinstance(answer, Tensor) and answer.grad_fn is not None:
            self._made.setdefault(answer.grad_fn, self._places.here()[0])
        return answer

    def _look(self, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        tensors = [each for each in (*args, *given.values()) if isinstance(each, Tensor)]
        scores = tensors[0]
        if is_transformed(scores) or not scores.requires_grad or (name == "logsumexp" and not _is_of_distributions()):
            return
        if name in _OF_LOGARITHMS and given.get("reduction") == "none":
            return  # a way to choose one of each row
        node = maker_of(scores, _PASSED)
        axes = _axes(name, scores, args, given)
        said = next((fault for axis in axes for fault in _faults(name, scores, node, axis)), None)
        place, is_own = self._places.here()
        if said is not None and is_own:
            self.found.append(SoftenedLoss(name, *said, self._made.get(node), place))


def _is_of_distributions() -> bool:
    """Whether a distribution of torch asks."""
    frame: FrameType | None = frame_above(2)
    for _ in range(_FRAMES):
        if frame is None or _OF_DISTRIBUTIONS in frame.f_code.co_filename:
            return frame is not None
        frame = frame.f_back
    return False


def _faults(name: str, scores: Tensor, node: Any, axis: int) -> Iterator[tuple[str, str]]:
    """What it was given that it does not take, and what it does."""
    kind, are_shares = kind_of(node), are_shares_of_one(scores, axis)
    if name == "binary_cross_entropy_with_logits" and kind in ("Sigmoid", "Softmax"):
        yield f"the probabilities of {'a sigmoid' if kind == 'Sigmoid' else 'a softmax'}", _OF_SCORES[name]
    elif name in ("log_softmax", "logsumexp") and are_shares and (kind == "Softmax" or name == "logsumexp"):
        yield "the probabilities of a softmax" if kind == "Softmax" else _SHARES, _OF_SCORES[name]
    elif name == "cross_entropy" and are_shares:
        yield _SHARES, _OF_SCORES[name]
    elif name == "cross_entropy" and kind == "Sigmoid":
        yield "what a sigmoid gives, between zero and one", "it takes scores of any size"
    elif name in _OF_LOGARITHMS and are_shares:
        yield _SHARES, "it takes their logarithms"
    elif name in ("nll_loss", "kl_div") and kind in _LINEAR and bool((scores > 0).any()):
        yield "scores as a layer gives them", "it takes logarithms of probabilities"


def _axes(name: str, scores: Tensor, args: tuple[Any, ...], given: dict[str, Any]) -> Iterator[int]:
    """The axes that may be of the classes."""
    if name in ("log_softmax", "logsumexp"):
        axis = given.get("dim", args[1] if len(args) > 1 else -1)
        yield axis if isinstance(axis, int) else -1
    elif name in _OF_CLASSES and scores.ndim > 1:
        yield 1
    else:
        yield -1
        if name == "kl_div" and scores.ndim > 2:
            yield 1
