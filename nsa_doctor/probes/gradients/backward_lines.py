"""Which line of a hand-written backward is at fault: the last that all wrong gradients come from and no right one."""

import ast
import inspect
import linecache
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.measurement import Place

_BRANCHES = (ast.For, ast.AsyncFor, ast.While, ast.If)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_MOVES = frozenset(
    (
        *("to", "view", "view_as", "reshape", "reshape_as", "type_as", "contiguous", "flatten", "unflatten", "squeeze"),
        *("unsqueeze", "transpose", "permute", "movedim", "expand", "expand_as", "clone", "detach", "float", "double"),
    )
)


@dataclass(frozen=True)
class _Statement:
    """A line that gives names a value: which, of which others, and whether it computes or only hands on."""

    line: int
    gives: frozenset[str]
    takes: frozenset[str]
    computes: bool


def place_at_fault(function: type, wrong: Collection[int], right: Collection[int]) -> Place | None:
    """The line of `function` that makes the gradients of the arguments `wrong` other than derivatives.

    It is the last that all of them come from, and none of the arguments `right`. Where that only reads what forward
    has saved, it is the line that saves. None where the source does not say.
    """
    code = code_of(function, "backward")
    body = None if code is None else _definition(code)
    results = [] if body is None else _results(body)
    if code is None or body is None or not wrong or max(wrong) >= len(results):
        return None
    statements = list(_statements(body.body, frozenset()))
    slices = [_slice(statements, result) for result in results]
    shared = frozenset[_Statement].intersection(*(slices[number] for number in wrong))
    others = frozenset[_Statement]().union(*(slices[number] for number in right if number < len(results)))
    found = max(shared - others or shared, key=lambda each: each.line, default=None)
    if found is None:
        return None
    if not found.computes and (saved := _saving(function)) is not None:
        return saved
    return Place(file=code.co_filename, line=found.line, function=code.co_name)


def code_of(function: type, name: str) -> CodeType | None:
    """The code of a method of an autograd function, without what is wrapped around it."""
    found = attempt(lambda: inspect.unwrap(getattr(function, name)).__code__)
    return found if isinstance(found, CodeType) else None


def _saving(function: type) -> Place | None:
    """Where it saves tensors for its backward."""
    for name in ("setup_context", "forward"):
        code = code_of(function, name)
        body = None if code is None else _definition(code)
        for node in () if body is None else ast.walk(body):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "save_for_backward" and code:
                return Place(file=code.co_filename, line=node.lineno, function=code.co_name)
    return None


def _definition(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(code.co_filename))))
    named = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)] if isinstance(tree, ast.Module) else []
    return next((node for node in named if node.name == code.co_name and _begins(node, code.co_firstlineno)), None)


def _begins(node: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return line in (node.lineno, *(each.lineno for each in node.decorator_list))


def _results(body: ast.AST) -> list[ast.expr]:
    """What its last `return` gives, one expression for each argument of forward."""
    last = max((each for each in _own(body) if isinstance(each, ast.Return)), key=lambda it: it.lineno, default=None)
    if last is None or last.value is None:
        return []
    return list(last.value.elts) if isinstance(last.value, ast.Tuple) else [last.value]


def _slice(statements: Sequence[_Statement], result: ast.expr) -> frozenset[_Statement]:
    """The statements that a result comes from, itself among them where it computes."""
    wanted, found = _names(result), set[_Statement]()
    if _computes(result):
        found.add(_Statement(result.lineno, frozenset(), frozenset(wanted), True))
    while more := {each for each in statements if each.gives & wanted} - found:
        found |= more
        wanted = wanted.union(*(each.takes for each in more))
    return frozenset(found)


def _statements(body: Sequence[ast.stmt], around: frozenset[str]) -> Iterator[_Statement]:
    """Each line that gives names a value; what decides whether it runs is among what it takes."""
    for node in body:
        if isinstance(node, _BRANCHES):
            mark, decides = f"line {node.lineno}", node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.test
            given = _targets(node.target) if isinstance(node, (ast.For, ast.AsyncFor)) else set[str]()
            yield _Statement(node.lineno, frozenset({mark, *given}), around | _names(decides), False)
            yield from _statements([*node.body, *node.orelse], around | {mark})
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _statements(node.body, around)
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *node.orelse, *node.finalbody], around)
        elif not isinstance(node, (ast.Return, *_SCOPES)):
            yield from _simple(node, around)


def _simple(node: ast.stmt, around: frozenset[str]) -> Iterator[_Statement]:
    targets, value = _assigned(node)
    written = {name for each in _own(node) if (name := _written_in_place(each))}
    given = written.union(*(_targets(each) for each in targets))
    if given:
        parts = {name for each in targets if not isinstance(each, (ast.Name, ast.Tuple)) for name in _names(each)}
        taken = _names(value) | parts | (given if isinstance(node, ast.AugAssign) else set()) | written
        writes = isinstance(node, ast.AugAssign) or any(isinstance(each, ast.Subscript) for each in targets)
        computes = writes or bool(written) or _computes(value)
        yield _Statement(node.lineno, frozenset(given), around | taken, computes)


def _assigned(node: ast.stmt) -> tuple[list[ast.expr], ast.AST]:
    if isinstance(node, ast.Assign):
        return node.targets, node.value
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        return [node.target], node.value
    return [], node


def _targets(target: ast.AST) -> set[str]:
    """The names that an assignment gives a value, or a part of it."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return set[str]().union(*(_targets(each) for each in target.elts))
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        target = target.value
    return {target.id} if isinstance(target, ast.Name) else set()


def _written_in_place(node: ast.AST) -> str:
    """The name whose tensor a call like `x[...].mul_(y)` writes to."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    is_write = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
    return next(iter(_targets(node.func.value)), "") if is_write else ""


def _computes(node: ast.AST) -> bool:
    """Whether an expression makes new numbers: it does more than name, cut or reshape."""
    if isinstance(node, ast.Subscript):
        return _computes(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
        return _computes(node.func.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_computes(each) for each in node.elts)
    return not isinstance(node, (ast.Name, ast.Attribute, ast.Constant))


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in it, functions defined in it apart."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _own(child)


def first_line(function: type, place: Place) -> Place:
    """The place with the first line of its backward; as it was where there is no source."""
    code: Any = code_of(function, "backward")
    if code is None:
        return place
    lines = sorted({line for *_, line in code.co_lines() if line and line > code.co_firstlineno})
    line = lines[0] if lines else code.co_firstlineno
    return replace(place, file=code.co_filename, line=line, function="backward")
