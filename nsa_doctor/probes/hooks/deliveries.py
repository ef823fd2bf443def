"""What backward delivers along each edge of the graph: a gradient, zeros, or what rounding leaves of one."""

import math
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.internal import softmax_of


class Deliveries:
    """How large gradients were on their way from a loss to its `leaves`, by hooks on every node."""

    def __init__(self, loss: Tensor) -> None:
        self.leaves: list[Tensor] = []
        self._received: dict[Any, float] = {}
        self._handed: dict[tuple[Any, int], float] = {}
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
        """The node nearest to the leaf that was given a gradient and handed on zeros, or rounding; None without one."""
        waiting, seen = [self._leaves.get(id(leaf))], set()
        shrinks = torch.finfo(leaf.dtype).eps ** 0.5  # rounding is eps, half way there in orders of magnitude
        while waiting:
            node = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            for user, index in self._users.get(node, []):
                handed = self._handed.get((user, index), 0.0)
                if handed * shrinks > self._received.get(node, 0.0):
                    return node
                if self._received.get(user, 0.0) * shrinks > handed:
                    return user
                waiting.append(user)
        return None

    def is_softmax_of_one(self, node: Any) -> bool:
        """Whether this is a softmax over an axis of one element, which is one whatever goes in."""
        return node in self._constant

    def _receiving(self, node: Any) -> Any:
        def look(gradients: Any) -> None:
            self._received[node] = max(map(_size, gradients), default=0.0)

        return look

    def _handing(self, node: Any) -> Any:
        def look(gradients: Any, _received: Any) -> None:
            for index, gradient in enumerate(gradients):
                self._handed[node, index] = _size(gradient)

        return look


def _size(gradient: Tensor | None) -> float:
    """The largest value; what is not a number is no zero."""
    if gradient is None or not gradient.numel():
        return 0.0
    size = float(gradient.detach().to_dense().abs().max())
    return math.inf if math.isnan(size) else size


def _is_softmax_of_one(node: Any) -> bool:
    if not node.name().startswith("SoftmaxBackward"):
        return False
    shape, dim = softmax_of(node)
    return len(shape) > 0 and shape[dim if dim < len(shape) else -1] == 1 and math.prod(shape) > 1
