"""Which expressions give a tensor that shares its values with another: always, or where nothing is to convert."""

import ast
import re
from dataclasses import dataclass, replace

_VIEWS = frozenset({
    *("view", "view_as", "detach", "transpose", "permute", "unsqueeze", "squeeze", "narrow", "select", "unflatten"),
    *("swapaxes", "movedim", "t", "chunk", "split", "unbind", "numpy", "diagonal", "alias", "from_numpy"),
})  # fmt: skip
_REORDERING = frozenset({"transpose", "permute", "swapaxes", "movedim", "t", "chunk", "split", "unbind", "diagonal"})
_WHERE_CONTIGUOUS = frozenset({"contiguous", "reshape", "reshape_as", "flatten", "ravel", "ascontiguousarray"})
_TO_FLOATS = frozenset({"float", "double", "half", "bfloat16"})
_TO_INTEGERS = frozenset({"long", "int"})
_WHERE_SO_ALREADY = frozenset(
    {*_TO_FLOATS, *_TO_INTEGERS, "to", "type", "type_as", "cpu", "cuda", "as_tensor", "asarray"}
)
_VIEWED = frozenset({"T", "mT", "H", "mH", "data"})
_OF_LIBRARIES = frozenset({"from_numpy", "ascontiguousarray", "as_tensor", "asarray", "reshape", "squeeze", "ravel"})
_LIBRARIES = frozenset({"torch", "np", "numpy"})
_FLAGS = re.compile(
    r"mask|keep|valid|visible|\breal\b|(^|_)pad(ded|ding|s)?(_|$)|flag|is_|done|context|known|observed|missing|allowed|"
    r"(^|_)(active|alive|present)(_|$)"
)
_NUMBERED = re.compile(
    r"\bids?\b|_ids?$|token|label|target|ind(ex|ices)|idx|length|class|"
    r"(^|_)counts?(_|$)|degree|histogram|position|time_?step|^t$|^steps?$"
)
_FLOATING = re.compile(r"float|half|double|dtype")


@dataclass(frozen=True)
class Alias:
    """A value that shares memory with an argument; `step` is the first expression that made it another, as `text`.

    why: under which condition that is none of a copy; is_view: under every one; is_tensor: by what it is asked for;
    is_in_order: its values lie as those of the argument do, so that one that is contiguous is not copied; is_cast: it
    is one of floats, and copied where the argument is of whole numbers or flags.
    """

    argument: str
    step: ast.AST | None = None
    text: str = ""
    why: str = ""
    is_view: bool = True
    is_tensor: bool = False
    is_in_order: bool = True
    is_cast: bool = False

    def through(
        self, node: ast.expr, why: str, *, is_view: bool, is_tensor: bool = True, is_in_order: bool = True
    ) -> "Alias":
        """What a further expression makes of it."""
        made = replace(self, is_tensor=self.is_tensor or is_tensor, is_view=self.is_view and is_view)
        made = replace(made, is_in_order=self.is_in_order and is_in_order)
        if made.step is None or (self.is_view and not is_view):
            made = replace(made, step=node, text=ast.unparse(node), why=why)
        return made


def alias_of(node: ast.expr, known: dict[str, Alias | None]) -> Alias | None:
    """What an expression shares its values with; None where it makes values of its own, or where that is not known."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and node.attr in _VIEWED:
        inner = alias_of(node.value, known)
        return inner and inner.through(node, "is a view", is_view=True, is_in_order=node.attr == "data")
    if isinstance(node, ast.Subscript) and _is_basic(node.slice):
        inner = alias_of(node.value, known)
        is_tuple = isinstance(node.slice, ast.Tuple)
        return inner and inner.through(node, "is a view", is_view=True, is_tensor=is_tuple, is_in_order=not is_tuple)
    return _of_call(node, known) if isinstance(node, ast.Call) else None


def _of_call(call: ast.Call, known: dict[str, Alias | None]) -> Alias | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    name, owner = call.func.attr, call.func.value
    if isinstance(owner, ast.Name) and owner.id in _LIBRARIES and owner.id not in known:
        inner = alias_of(call.args[0], known) if call.args and name in _OF_LIBRARIES | _VIEWS else None
    else:
        inner = alias_of(owner, known)
    if inner is None or any(each.arg == "copy" for each in call.keywords) or _is_converted(call, name, inner):
        return None
    if name in _VIEWS:
        return inner.through(call, "is a view", is_view=True, is_in_order=name not in _REORDERING)
    if name in _WHERE_CONTIGUOUS and inner.is_in_order:
        return inner.through(call, "is no copy of what is contiguous", is_view=False)
    if name in _WHERE_SO_ALREADY:
        made = inner.through(call, "is no copy of what has that dtype already", is_view=False)
        return replace(made, is_cast=inner.is_cast or _is_of_floats(call, name))
    return None


def _is_of_floats(call: ast.Call, name: str) -> bool:
    given = [*call.args, *(each.value for each in call.keywords)]
    return name in _TO_FLOATS or any(_FLOATING.search(ast.unparse(each)) for each in given)


def _is_converted(call: ast.Call, name: str, alias: Alias) -> bool:
    """Whether an argument of that name is of another dtype, by what such names are of."""
    argument = alias.argument.lower()
    if _FLAGS.search(argument):
        return name in _TO_FLOATS | _TO_INTEGERS | {"to", "type", "type_as"}
    if _NUMBERED.search(argument):
        return name in _WHERE_SO_ALREADY and _is_of_floats(call, name)
    return name in _TO_INTEGERS


def _is_basic(index: ast.expr) -> bool:
    """Whether it takes a slice, by no tensor or list of places."""
    if isinstance(index, ast.Tuple):
        return all(_is_basic(each) for each in index.elts)
    if isinstance(index, ast.UnaryOp):
        return _is_basic(index.operand)
    is_number = isinstance(index, ast.Constant) and (index.value in (None, ...) or type(index.value) is int)
    return isinstance(index, ast.Slice) or is_number
