"""Small changes to what code of tensors is made of: slices, masks, calls and their arguments."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from nsa_doctor.policy.proving.operators import (
    Operator,
    arithmetic,
    called,
    comparison,
    condition,
    flag,
    number,
    sign,
)
from nsa_doctor.policy.proving.source import Edit, Source

_REMOVED = frozenset(
    (
        *("contiguous", "detach", "clone", "masked_fill", "masked_fill_", "where", "float", "double", "type_as", "to"),
        *("clamp", "clamp_min", "clamp_max", "abs", "sqrt", "rsqrt", "exp", "log", "square", "reciprocal"),
        *("sigmoid", "tanh", "relu", "silu", "gelu", "softmax", "log_softmax", "softplus", "dropout", "normalize"),
        *("tril", "triu", "flip", "roll", "cumsum", "sort", "floor", "ceil", "round", "logical_not", "requires_grad_"),
    )
)
_TWINS = (
    *(("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax"), ("clamp_min", "clamp_max")),
    *(("zeros", "ones"), ("zeros_like", "ones_like"), ("new_zeros", "new_ones"), ("tril", "triu"), ("sin", "cos")),
    *(("floor", "ceil"), ("sum", "mean"), ("any", "all"), ("sqrt", "rsqrt"), ("sigmoid", "tanh"), ("cos", "sin")),
    *(("lt", "le"), ("gt", "ge"), ("eq", "ne"), ("repeat", "repeat_interleave"), ("logical_and", "logical_or")),
)
_TWIN = {**dict(_TWINS), **{other: one for one, other in _TWINS}}
_MASKS = ("tril", "triu", "tril_", "triu_")


def bounds(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A bound of a slice moves by one, or goes; of numbers `number` says more."""
    if not isinstance(node, ast.Slice):
        return
    for bound in (node.lower, node.upper):
        if bound is None:
            continue
        start, end = source.span(bound)
        yield Edit(start=start, end=end, new="", kind="index")
        if not isinstance(bound, ast.Constant | ast.UnaryOp):
            for step in ("+ 1", "- 1"):
                yield Edit(start=start, end=end, new=f"({source.segment(bound)}) {step}", kind="index")


def diagonal(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`tril()` and `triu()` without an offset get one."""
    if not isinstance(node, ast.Call) or called(node) not in _MASKS or node.keywords:
        return
    if len(node.args) == (1 if _is_function(node, source) else 0):
        _, end = source.span(node)
        comma = ", " if node.args else ""
        for offset in (1, -1):
            yield Edit(start=end - 1, end=end - 1, new=f"{comma}{offset}", kind="mask")


def twin(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A function becomes its counterpart: `min` becomes `max`, `zeros` becomes `ones`."""
    if isinstance(node, ast.Call) and (name := _TWIN.get(called(node))) is not None:
        _, end = source.span(node.func)
        yield Edit(start=end - len(called(node).encode()), end=end, new=name, kind="function")


def removed_call(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A call goes and what it was about stays: `x.detach()`, `F.silu(x)` and `self.norm(x)` become `x`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    kept: ast.expr | None = None
    if _is_function(node, source):
        kept = node.args[0] if node.args and called(node) in _REMOVED else None
    elif called(node) in _REMOVED:
        kept = node.func.value
    elif isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
        kept = node.args[0] if len(node.args) == 1 and not node.keywords else None
    if kept is not None and not isinstance(kept, ast.Starred):
        start, end = source.span(node)
        yield Edit(start=start, end=end, new=f"({source.segment(kept)})", kind="call")


def swapped(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Two neighbouring arguments of a kind change places, or two names that a tuple is unpacked into."""
    is_unpacking = isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store)
    if not isinstance(node, ast.Call) and not is_unpacking:
        return
    assert isinstance(node, ast.Call | ast.Tuple)
    parts = node.args if isinstance(node, ast.Call) else node.elts
    for one, other in pairwise(parts):
        first, second = source.segment(one), source.segment(other)
        if type(one) is type(other) and isinstance(one, ast.Name | ast.Attribute | ast.Constant) and first != second:
            (start, inner), (outer, end) = source.span(one), source.span(other)
            between = source.data[inner:outer].decode()
            yield Edit(start=start, end=end, new=f"{second}{between}{first}", kind="arguments")


def _is_function(call: ast.Call, source: Source) -> bool:
    """Whether it is called on a module, which is nothing that is computed."""
    root: ast.expr = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in source.modules


OPERATORS: tuple[Operator, ...] = (
    *(arithmetic, comparison, condition, sign, flag, number),
    *(bounds, diagonal, twin, removed_call, swapped),
)
