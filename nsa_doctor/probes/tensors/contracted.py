"""Which two tensors a call of torch multiplies and sums over, and the axis of each that is summed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_MATMUL = frozenset({"matmul", "__matmul__", "mm", "bmm", "linear", "inner"})
_BY_ROWS = frozenset({"linear", "inner"})
_ATTENTION = "scaled_dot_product_attention"
_TERMS = re.compile(r"([a-zA-Z]+|\.\.\.[a-zA-Z]+|[a-zA-Z]+\.\.\.),(\.{0,3}[a-zA-Z]+)->(\.{0,3}[a-zA-Z]*)")


@dataclass(frozen=True)
class Contraction:
    """Two tensors, and the axis of each along which their product is summed, counted from the end."""

    left: Tensor
    left_axis: int
    right: Tensor
    right_axis: int


def contraction_of(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Contraction | None:
    """What a product of matrices is of; None of other calls, and of one over several axes."""
    if name == "einsum":
        return _of_equation(args)
    if name in ("__rmatmul__",):
        args, name = args[1::-1], "matmul"
    if name == _ATTENTION:
        left, right = (args[at] if len(args) > at else named.get(each) for at, each in enumerate(("query", "key")))
        return Contraction(left, -1, right, -1) if isinstance(left, Tensor) and isinstance(right, Tensor) else None
    if name == "baddbmm":  # to what is there already
        args, name = args[1:], "bmm"
    if name not in _MATMUL or len(args) < 2:
        return None
    left, right = args[:2]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or not left.ndim or not right.ndim:
        return None
    return Contraction(left, -1, right, -1 if name in _BY_ROWS or right.ndim == 1 else -2)


def _of_equation(args: tuple[Any, ...]) -> Contraction | None:
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if len(operands) != 2 or not isinstance(args[0], str) or any(not isinstance(each, Tensor) for each in operands):
        return None
    read = _TERMS.fullmatch(args[0].replace(" ", ""))
    if read is None or any(each.rfind(".") > 2 for each in read.groups()):
        return None
    one, other, kept = (each.lstrip(".") for each in read.groups())
    summed = [each for each in one if each in other and each not in kept]
    if len(summed) != 1:
        return None
    left, right = operands
    return Contraction(left, one.index(summed[0]) - len(one), right, other.index(summed[0]) - len(other))
