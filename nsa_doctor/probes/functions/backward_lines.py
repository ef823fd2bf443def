"""Which line of a backward in Python computes a gradient: the statements that it is made of, by names and their uses.

A statement that every wrong gradient depends on and no right one is at fault before one that they share; of those the
last that computes anything. What is not a plain list of names and assignments is left at the line of its definition.
"""

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.errors import Caught, attempt

_MOST_NODES = 200
_ARITHMETIC = (
    "matmul",
    "einsum",
    "bmm",
    "mm",
    "sum",
    "mean",
    "mul",
    "div",
    "add",
    "sub",
    "exp",
    "where",
    "masked_fill",
)
_ASKS = ("zeros", "empty", "ones", "full", "contiguous", "to", "float", "double", "type", "view", "reshape", "shape")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One name that a statement gives a value, the names it is made of, its line, and whether it computes."""

    line: int
    target: str
    names: frozenset[str]
    computes: bool


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The statements of a backward and, in order, the expressions of what it returns that are not None."""

    statements: tuple[Statement, ...]
    returned: tuple[ast.expr, ...]

    def line_of(self, wrong: Collection[str], right: Collection[str], order: Collection[str]) -> int:
        """The line at fault where those gradients are wrong and those right; `order` is that of what is returned."""
        if len(self.returned) < len(order):
            return 0
        made = {
            name: self._behind(_loaded(each)) | _own(each) for name, each in zip(order, self.returned, strict=False)
        }
        wrongs, rights = ([made[name] for name in names if name in made] for names in (wrong, right))
        if not wrongs:
            return 0
        shared = set.intersection(*wrongs)
        counted = {each: sum(each in other for other in rights) for each in shared}
        computing = [each for each in shared if each.computes] or list(shared)
        best = min((counted[each] for each in computing), default=0)
        return max((each.line for each in computing if counted[each] == best), default=0)

    def _behind(self, names: Collection[str]) -> set[Statement]:
        """All statements that give those names a value, and those behind them."""
        found: set[Statement] = set()
        waiting, seen = list(names), set(names)
        while waiting:
            name = waiting.pop()
            for each in (each for each in self.statements if each.target == name):
                found.add(each)
                waiting += each.names - seen
                seen |= each.names
        return found


def backward_of(function: Any) -> Backward | None:
    """Of a backward's source, lines counted as in its file; None where there is none to read."""
    read = attempt(lambda: inspect.getsourcelines(inspect.unwrap(function)))
    if isinstance(read, Caught):
        return None
    lines, first = read
    tree = attempt(lambda: ast.parse(textwrap.dedent("".join(lines))))
    if isinstance(tree, Caught) or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    ast.increment_lineno(tree, first - 1)
    returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    if not returns:
        return None
    values = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    value = max(returns, key=lambda node: node.lineno).value
    given = [each for each in _elements(value, values) if not _is_none(each)]
    return Backward(statements=tuple(_statements(tree)), returned=tuple(given))


def _elements(node: ast.expr | None, values: Mapping[str, ast.expr]) -> Iterator[ast.expr]:
    """The expressions that stand side by side in a tuple, in a generator over one, in what a name was given."""
    if isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _elements(each.value, values) if isinstance(each, ast.Starred) else (each,)
    elif isinstance(node, ast.GeneratorExp | ast.ListComp):
        yield from _elements(node.generators[0].iter, values)
    elif isinstance(node, ast.Name) and isinstance(values.get(node.id), ast.Tuple | ast.GeneratorExp | ast.ListComp):
        yield from _elements(values[node.id], values)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("tuple", "list") and node.args:
        yield from _elements(node.args[0], values)
    elif node is not None:
        yield node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _statements(tree: ast.AST) -> Iterator[Statement]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value, node.lineno)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
            yield from _assigned(node.target, node.value, node.lineno)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _written_in_place(node.value)


def _assigned(target: ast.expr, value: ast.expr, line: int) -> Iterator[Statement]:
    """One statement for each name; of tuples side by side, and of a generator over one, each from its own."""
    if isinstance(target, ast.Tuple | ast.List):
        for each, part in zip(target.elts, _parts(value, len(target.elts)), strict=True):
            yield from _assigned(each, part, line)
        return
    name = _base(target)
    if name:
        index = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)} - {name}
        names = frozenset(_loaded(value) | index)
        yield Statement(line=line, target=name, names=names, computes=_is_computed(value))


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
        return value.elts
    if isinstance(value, ast.GeneratorExp | ast.ListComp):
        over = value.generators[0].iter
        if isinstance(over, ast.Tuple | ast.List) and len(over.elts) == count:
            return over.elts
    return [value] * count


def _written_in_place(call: ast.Call) -> Iterator[Statement]:
    """`x.add_(y)`, `dk[b].index_add_(0, rows, part)`, `torch.matmul(a, b, out=c)`."""
    out = next((each.value for each in call.keywords if each.arg == "out"), None)
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_")
    target = out or (call.func.value if is_method and isinstance(call.func, ast.Attribute) else None)
    name = "" if target is None else _base(target)
    if name:
        names = frozenset(_loaded(call))
        yield Statement(line=call.lineno, target=name, names=names, computes=True)


def _base(node: ast.expr) -> str:
    """The name that is written to: `dk` of `dk[..., 0:8, :]`."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _own(node: ast.expr) -> set[Statement]:
    """What a returned expression computes itself."""
    is_arithmetic = any(isinstance(each, ast.BinOp) or _is_named(each, _ARITHMETIC) for each in ast.walk(node))
    own = Statement(line=node.lineno, target="", names=frozenset(_loaded(node)), computes=True)
    return {own} if is_arithmetic else set()


def _is_computed(node: ast.expr) -> bool:
    """Whether there is arithmetic in it, and not alone a shape, a dtype or new memory."""
    found = (each for each in ast.walk(node) if isinstance(each, ast.BinOp | ast.Call))
    return any(not _is_named(each, _ASKS) for each in found)


def _is_named(node: ast.AST, names: tuple[str, ...]) -> bool:
    """Whether it is a call of something whose name begins so."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.startswith(names)


def names_by_edge(node: Any, leaves: Mapping[int, str]) -> tuple[str, ...]:
    """For each tensor that a node hands a gradient to, the first input that it comes to."""
    found = (_first_leaf(following, leaves) for following, _ in node.next_functions if following is not None)
    return tuple(found)


def _first_leaf(node: Any, leaves: Mapping[int, str]) -> str:
    waiting: list[Any] = [node]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        each = waiting.pop(0)
        if each is None or each in seen:
            continue
        seen.add(each)
        name = leaves.get(id(getattr(each, "variable", None)))
        if name is not None:
            return name
        waiting += [following for following, _ in each.next_functions]
    return ""
