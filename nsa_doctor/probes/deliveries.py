"""What backward delivers along each edge of the graph: a gradient, or zeros."""

import math
from typing import Any

from torch import Tensor


class Deliveries:
    """Which gradients were nothing but zeros on their way from a loss to its `leaves`, by hooks on every node."""

    def __init__(self, loss: Tensor) -> None:
        self.leaves: list[Tensor] = []
        self._received: dict[Any, bool] = {}
        self._handed: dict[tuple[Any, int], bool] = {}
        self._users: dict[Any, list[tuple[Any, int]]] = {}
        self._leaves: dict[int, Any] = {}
        self._constant: set[Any] = set()
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                self.leaves.append(node.variable)
                self._leaves[id(node.variable)] = node
            if _is_softmax_of_one(node):
                self._constant.add(node)
            node.register_prehook(self._receiving(node))
            node.register_hook(self._handing(node))
            for index, (following, _) in enumerate(node.next_functions):
                if following is not None:
                    self._users.setdefault(following, []).append((node, index))
                    waiting.append(following)

    def birth_of_zeros(self, leaf: Tensor) -> Any:
        """The node nearest to the leaf that was given a gradient and handed on zeros; None when there is none."""
        waiting, seen = [self._leaves.get(id(leaf))], set()
        while waiting:
            node = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            for user, index in self._users.get(node, []):
                if self._handed.get((user, index)):
                    return node
                if self._received.get(user):
                    return user
                waiting.append(user)
        return None

    def is_softmax_of_one(self, node: Any) -> bool:
        """Whether this is a softmax over an axis of one element, which is one whatever goes in."""
        return node in self._constant

    def _receiving(self, node: Any) -> Any:
        def look(gradients: Any) -> None:
            self._received[node] = any(_holds_value(gradient) for gradient in gradients)

        return look

    def _handing(self, node: Any) -> Any:
        def look(gradients: Any, _received: Any) -> None:
            for index, gradient in enumerate(gradients):
                self._handed[node, index] = _holds_value(gradient)

        return look


def _holds_value(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _is_softmax_of_one(node: Any) -> bool:
    """By the shape of its output alone: what it saved may have been overwritten, and would raise."""
    if not node.name().startswith("SoftmaxBackward"):
        return False
    shape = tuple(node._input_metadata[0].shape)
    dim = node._saved_dim
    return len(shape) > 0 and shape[dim if dim < len(shape) else -1] == 1 and math.prod(shape) > 1
