"""What autograd says of how a tensor was made: the kinds of nodes, the one that computed it, and what lies behind."""

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

VIEWS = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Select", "Slice",
    "Index", "Clone", "ToCopy", "Expand", "Split", "Unbind", "Alias", "MaskedSelect",
})  # fmt: skip
_JOINED = ("Cat", "Stack")
_OF_DATA = ("mm", "mv", "conv", "embedding", "lstm", "gru", "rnn", "linear", "attention", "fft")  # what has weights
_MOST_NODES = 50_000


def kind_of(node: Any) -> str:
    """The name of a node without what torch puts behind it; empty where there is none."""
    return "" if node is None else str(node.name()).partition("Backward")[0]


def maker_of(tensor: Tensor, passed: Collection[str]) -> Any:
    """The node that computed it, behind those of the kinds passed, and joins of what one kind made; None of a leaf."""
    return computing(tensor.grad_fn, passed)


def computing(node: Any, passed: Collection[str]) -> Any:
    """The node itself, or the one behind it that computed what it passes on."""
    while node is not None and node.next_functions:
        before = [each for each, _ in node.next_functions]
        is_join = kind_of(node) in _JOINED
        if (is_join and len({kind_of(each) for each in before}) > 1) or not (is_join or kind_of(node) in passed):
            return node
        node = before[0]
    return node


def behind(nodes: Iterable[Any]) -> set[Any]:
    """These nodes and all that they lead back to."""
    waiting, seen = [each for each in nodes if each is not None], set[Any]()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(each for each, _ in node.next_functions if each is not None)
    return seen


def is_of_data(node: Any) -> bool:
    """Whether weights were applied to something on the way to it, and it is not made of parameters alone."""
    return any(any(each in kind_of(one).lower() for each in _OF_DATA) or _is_own(one) for one in behind([node]))


def _is_own(node: Any) -> bool:
    """Whether a function in Python made it."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)
