"""Which line of a backward in Python computes a gradient: its statements, the names they give and those they take.

A statement that every wrong gradient comes from, and no right one, is at fault before one that they share; among those
one that computes before one that only hands on, and the last before an earlier one.
"""

import ast
import inspect
import linecache
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.measurement import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor)
_BRANCHES = (*_LOOPS, ast.While, ast.If)
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp)
_MOVES = (
    *("to", "view", "view_as", "reshape", "reshape_as", "type", "type_as", "contiguous", "flatten", "unflatten"),
    *("squeeze", "unsqueeze", "transpose", "permute", "movedim", "expand", "expand_as", "clone", "detach", "float"),
    *("double", "half", "bfloat16", "tuple", "list"),
)
_NEW_MEMORY = ("zeros", "empty", "ones", "full", "new_")
_ARITHMETIC = (
    *("matmul", "einsum", "bmm", "mm", "sum", "mean", "mul", "div", "add", "sub", "exp", "where", "masked_fill"),
    *("softmax", "clamp", "roll", "flip", "cumsum", "neg"),
)


@dataclass(frozen=True)
class Statement:
    """A line that gives one name a value, the names it takes, and whether it computes or only hands on."""

    line: int
    gives: str
    takes: frozenset[str]
    computes: bool


@dataclass(frozen=True)
class BackwardSource:
    """The statements of a backward, and the expressions that its last `return` gives, None among them."""

    code: CodeType
    statements: tuple[Statement, ...]
    returned: tuple[ast.expr, ...]

    @property
    def given(self) -> tuple[int, ...]:
        """The positions at which something other than None is returned."""
        return tuple(number for number, each in enumerate(self.returned) if not _is_none(each))

    def at_fault(self, wrong: Collection[int], right: Collection[int]) -> Statement | None:
        """The statement at fault where the gradients at some positions are wrong and those at others are right."""
        if not wrong or max(wrong) >= len(self.returned):
            return None
        shared = frozenset[Statement].intersection(*(self._behind(self.returned[number]) for number in wrong))
        rights = [self._behind(self.returned[number]) for number in right if number < len(self.returned)]

        def weight(each: Statement) -> tuple[bool, bool, int, int]:
            users = sum(each in other for other in rights)
            return users == 0, each.computes, -users, each.line

        return max(shared, key=weight, default=None)

    def place_of(self, statement: Statement) -> Place:
        """Where a statement of it stands."""
        return Place(file=self.code.co_filename, line=statement.line, function=self.code.co_name)

    def _behind(self, result: ast.expr) -> frozenset[Statement]:
        """The statements that a result comes from; the result itself, where it computes."""
        wanted, found = set(_names(result)), set[Statement]()
        if _is_arithmetic(result):
            found.add(Statement(result.lineno, "", _names(result), computes=True))
        while more := {each for each in self.statements if each.gives in wanted} - found:
            found |= more
            wanted = wanted.union(*(each.takes for each in more))
        return frozenset(found)


def code_of(function: Any) -> CodeType | None:
    """The code of a function, without what is wrapped around it."""
    found = attempt(lambda: inspect.unwrap(function).__code__)
    return found if isinstance(found, CodeType) else None


def read_backward(code: CodeType) -> BackwardSource | None:
    """The source of a backward; None where there is none to read, or it returns nothing."""
    body = definition_of(code)
    returns = [each for each in _within(body or ast.Pass()) if isinstance(each, ast.Return)]
    last = max(returns, key=lambda each: each.lineno, default=None)
    if body is None or last is None or last.value is None:
        return None
    assigned = {
        target.id: node.value
        for node in _within(body)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    statements = tuple(_statements(body.body, frozenset()))
    return BackwardSource(code, statements, tuple(_elements(last.value, assigned)))


def definition_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition that some code was compiled from, in the file that it names."""
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(code.co_filename))))
    named = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)] if isinstance(tree, ast.Module) else []
    return next((node for node in named if node.name == code.co_name and _begins(node, code.co_firstlineno)), None)


def _begins(node: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return line in (node.lineno, *(each.lineno for each in node.decorator_list))


def _elements(node: ast.expr, assigned: dict[str, ast.expr]) -> Iterator[ast.expr]:
    """The expressions that stand side by side in a tuple, in a generator over one, in what a name was given."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _elements(each.value, assigned) if isinstance(each, ast.Starred) else (each,)
    elif isinstance(node, _COMPREHENSIONS):
        yield from _elements(node.generators[0].iter, assigned)
    elif isinstance(node, ast.Name) and isinstance(assigned.get(node.id), (ast.Tuple, *_COMPREHENSIONS)):
        yield from _elements(assigned[node.id], assigned)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("tuple", "list") and node.args:
        yield from _elements(node.args[0], assigned)
    else:
        yield node


def _statements(body: Sequence[ast.stmt], around: frozenset[str]) -> Iterator[Statement]:
    """One for each name that a line gives a value; what decides whether the line runs is among what it takes."""
    for node in body:
        if isinstance(node, _BRANCHES):
            mark, decides = f"line {node.lineno}", node.iter if isinstance(node, _LOOPS) else node.test
            for name in (mark, *(_targets(node.target) if isinstance(node, _LOOPS) else ())):
                yield Statement(node.lineno, name, around | _names(decides), computes=False)
            yield from _statements([*node.body, *node.orelse], around | {mark})
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _statements(node.body, around)
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *node.orelse, *node.finalbody], around)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value, around)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            is_added = isinstance(node, ast.AugAssign)
            yield from _assigned(node.target, node.value, around, is_added=is_added)
        elif not isinstance(node, (ast.Return, *_SCOPES)):
            yield from _written_in_place(node, around)


def _assigned(
    target: ast.expr, value: ast.expr, around: frozenset[str], *, is_added: bool = False
) -> Iterator[Statement]:
    """Of tuples side by side, and of a generator over one, each name from its own part."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for each, part in zip(target.elts, _parts(value, len(target.elts)), strict=True):
            yield from _assigned(each, part, around)
        return
    for name in _targets(target):
        is_kept = is_added or isinstance(target, ast.Subscript)  # what was in it before is still there
        takes = around | _names(value) | _names(target) | ({name} if is_kept else set())
        yield Statement(target.lineno, name, takes, computes=is_kept or _computes(value))
    yield from _written_in_place(value, around)


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    over = value.generators[0].iter if isinstance(value, _COMPREHENSIONS) else value
    is_split = isinstance(over, (ast.Tuple, ast.List)) and len(over.elts) == count
    return over.elts if is_split and isinstance(over, (ast.Tuple, ast.List)) else [value] * count


def _written_in_place(node: ast.AST, around: frozenset[str]) -> Iterator[Statement]:
    """`x.add_(y)`, `dk[b].index_add_(0, rows, part)`, `torch.matmul(a, b, out=c)`."""
    for call in (each for each in (node, *_within(node)) if isinstance(each, ast.Call)):
        written = [each.value for each in call.keywords if each.arg == "out"]
        if isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_") and call.func.attr[-2:] != "__":
            written.append(call.func.value)
        for name in (name for each in written for name in _targets(each)):
            yield Statement(call.lineno, name, around | _names(call) | {name}, computes=True)


def _targets(target: ast.AST) -> set[str]:
    """The names that are given a value, or a part of it: `dk` of `dk[..., 0:8, :]` and of `dk.view(-1)`."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return set[str]().union(*(_targets(each) for each in target.elts))
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred, ast.Call)):
        target = target.func if isinstance(target, ast.Call) else target.value
    return {target.id} if isinstance(target, ast.Name) else set()


def _computes(node: ast.AST) -> bool:
    """Whether an expression makes new numbers: it does more than name, cut, reshape or ask for memory."""
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return _computes(node.value)
    if isinstance(node, _COMPREHENSIONS):
        return _computes(node.elt) or _computes(node.generators[0].iter)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_computes(each) for each in node.elts)
    if isinstance(node, ast.Call) and _called(node).startswith(_NEW_MEMORY):
        return False
    if isinstance(node, ast.Call) and _called(node) in _MOVES:
        return _computes(node.func.value) if isinstance(node.func, ast.Attribute) else any(map(_computes, node.args))
    return not isinstance(node, (ast.Name, ast.Attribute, ast.Constant))


def _is_arithmetic(node: ast.AST) -> bool:
    """Whether what is returned is computed there, and not alone by a helper that gives it its last shape."""
    calls = [_called(each) for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(isinstance(each, ast.BinOp) for each in ast.walk(node)) or any(
        each.startswith(_ARITHMETIC) for each in calls
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in it, functions defined in it apart."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _within(child)
