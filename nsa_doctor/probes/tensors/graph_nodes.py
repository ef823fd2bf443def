"""What autograd says of how a tensor was made: the kinds of nodes, and the one that computed it."""

from collections.abc import Collection
from typing import Any

from torch import Tensor

VIEWS = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Select", "Slice",
    "Index", "Clone", "ToCopy", "Expand", "Split", "Unbind", "Alias", "MaskedSelect",
})  # fmt: skip
_JOINED = ("Cat", "Stack")


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
