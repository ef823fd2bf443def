"""Lines of a module's class that make an attribute, read it for nothing, or read another where it may be meant."""

import ast
import inspect
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import Line

MAKING = ("__init__", "__post_init__", "reset_parameters", "init_weights", "_init_weights", "extra_repr")
_FILLING = ("add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ReadOfSibling:
    """A line that reads a sibling, by its name, where another attribute is left out."""

    name: str
    line: Line


def line_that_makes(holder: nn.Module, name: str) -> Line | None:
    """Where a method of its class assigns the attribute; None where none does by that name."""
    for file, method in methods_of(holder):
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_of_self(node, name):
                return Line(file=file, line=node.lineno, function=method.name)
    return None


def line_that_fills(holder: nn.Module, name: str) -> Line | None:
    """Where a method that makes no module first names the attribute, or else one that does; None where none does."""
    found: list[tuple[bool, int, Line]] = []
    for file, method in methods_of(holder):
        for node in ast.walk(method):
            is_own = isinstance(node, ast.Attribute) and is_of_self(node, name)
            if isinstance(node, (ast.Attribute, ast.Constant)) and (is_own or getattr(node, "value", None) == name):
                line = Line(file=file, line=node.lineno, function=method.name)
                found.append((method.name in MAKING, node.lineno, line))
    return min(found, key=lambda each: each[:2], default=(False, 0, None))[2]


def line_that_stores(holder: nn.Module, name: str, beside: Line) -> Line | None:
    """The line that stores something in the attribute, where one method alone does: the nearest to a line of it.

    What makes the module, or puts something empty there, stores nothing. None where several methods may be meant.
    """
    found: dict[str, list[Line]] = {}
    for file, method in methods_of(holder):
        for node in ast.walk(method):
            if method.name not in MAKING and _is_storing(node, name):
                line = Line(file=file, line=node.lineno, function=method.name)  # type: ignore[attr-defined]
                found.setdefault(method.name, []).append(line)
    near = found.get(beside.function) if beside.function in found else None
    lines = near or (next(iter(found.values())) if len(found) == 1 else [])
    is_inside = near is not None and near[0].file == beside.file
    return min(lines, key=lambda line: abs(line.line - beside.line) if is_inside else line.line, default=None)


def _is_storing(node: ast.AST, name: str) -> bool:
    """Whether it assigns something to the attribute or an item of it, or calls `append` or its like of it."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        held = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
        return any(_names(each, name) for each in held) and not _is_empty(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
        return any(_names(each, name) for each in (node.func.value, *node.args[:1]))
    return False


def _names(node: ast.AST, name: str) -> bool:
    """Whether it is `self.name`, or that name in quotes, as `__dict__` has it."""
    return (isinstance(node, ast.Attribute) and is_of_self(node, name)) or (
        isinstance(node, ast.Constant) and node.value == name
    )


def _is_empty(node: ast.AST) -> bool:
    """Whether it is None, or a container with nothing in it."""
    match node:
        case ast.Constant(value=None) | ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Call(args=[], keywords=[]):
            return True
    return False


def taken_in_place_of(holder: nn.Module, name: str) -> ReadOfSibling | None:
    """The line that reads a sibling of the same class and shapes twice in one function that never reads `name`.

    Of two such reads it is the last where `name` was made after the sibling, and else the first.
    """
    missing, names = getattr(holder, name, None), list(_registered(holder))
    for sibling in names:
        if sibling == name or not _are_alike(missing, getattr(holder, sibling)):
            continue
        for file, method in methods_of(holder):
            reads = _reads(method, sibling)
            if method.name not in MAKING and len(reads) > 1 and not _reads(method, name):
                line = reads[-1] if names.index(sibling) < names.index(name) else reads[0]
                return ReadOfSibling(sibling, Line(file=file, line=line, function=method.name))
    return None


def read_beside(holder: nn.Module, name: str) -> ReadOfSibling | None:
    """The last line that reads the one part whose name begins as `name` does (`key` and `key_norm`).

    None where there is none or are several, or where it is read in several methods.
    """
    begin = name.partition("_")[0]
    siblings = [each for each in _registered(holder) if each != name and each.partition("_")[0] == begin]
    if len(siblings) != 1:
        return None
    methods = [(file, each) for file, each in methods_of(holder) if each.name not in MAKING]
    found = [(file, each, lines) for file, each in methods if (lines := _reads(each, siblings[0]))]
    if len(found) != 1:
        return None
    ((file, method, lines),) = found
    return ReadOfSibling(siblings[0], Line(file=file, line=lines[-1], function=method.name))


def read_for_nothing(holder: nn.Module, name: str) -> Line | None:
    """Where a method reads the attribute into a variable, or hands it to a method, that never reads it again.

    None where any read of it may come to something, or where none does.
    """
    methods = list(methods_of(holder))
    found: Line | None = None
    for file, method in methods:
        ignored = set(_ignored_values(method, methods))
        for node in ast.walk(method) if method.name not in MAKING else ():
            if isinstance(node, ast.Constant) and node.value == name:  # asked for by name
                return None
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_of_self(node, name):
                if node not in ignored:
                    return None
                found = found or Line(file=file, line=node.lineno, function=method.name)
    return found


def _ignored_values(method: _Function, methods: Sequence[tuple[str, _Function]]) -> Iterator[ast.expr]:
    """Expressions whose value goes into a name that nothing reads: a variable, or a parameter of a method called."""
    by_name = {each.name: each for _, each in reversed(methods)}  # the nearest class comes first, and wins
    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pairs = _paired(node.targets[0], node.value)
            yield from (value for target, value in pairs if not _is_read(method, target))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and is_of_self(node.func, node.func.attr)
        ):
            called = by_name.get(node.func.attr)
            if called is not None and not called.decorator_list:
                yield from (value for word, value in _handed(called, node) if not _is_read(called, word))


def _handed(called: _Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Parameters of a method and the values that a call gives them, as far as the call spells them out."""
    parameters = [each.arg for each in (*called.args.posonlyargs, *called.args.args)][1:]
    yield from zip(parameters, takewhile(lambda each: not isinstance(each, ast.Starred), call.args), strict=False)
    accepted = {*parameters, *(each.arg for each in called.args.kwonlyargs)}
    yield from ((each.arg, each.value) for each in call.keywords if each.arg in accepted)


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Plain names and the values that one assignment gives them."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [pair for each, own in zip(target.elts, value.elts, strict=True) for pair in _paired(each, own)]
    return []


def _is_read(function: _Function, name: str) -> bool:
    reading = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return name in reading or "locals" in reading


def _registered(holder: nn.Module) -> Iterator[str]:
    yield from (name for name, _ in holder.named_parameters(recurse=False))
    yield from (name for name, _ in holder.named_children())


def _are_alike(one: object, other: object) -> bool:
    """Whether both are parameters of one shape, or modules of one class whose parameters have the same shapes."""
    return type(one) is type(other) and _shapes(one) == _shapes(other)


def _shapes(value: object) -> list[tuple[int, ...]]:
    held = [value] if isinstance(value, Tensor) else value.parameters() if isinstance(value, nn.Module) else []
    return [tuple(each.shape) for each in held]


def _reads(method: ast.AST, name: str) -> list[int]:
    return sorted(
        node.lineno
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_of_self(node, name)
    )


def is_of_self(node: ast.Attribute, name: str) -> bool:
    """Whether it is `self.name`."""
    return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self"


def methods_of(holder: nn.Module) -> Iterator[tuple[str, _Function]]:
    """The file and source of each method of its classes but nn.Module's, nearest class first."""
    for kind in type(holder).__mro__:
        if kind in (nn.Module, object):
            continue
        file = attempt(lambda kind=kind: inspect.getsourcefile(kind))
        lines = linecache.getlines(file) if isinstance(file, str) else []
        tree = attempt(lambda lines=lines: ast.parse("".join(lines)))
        found = ast.walk(tree) if isinstance(tree, ast.Module) else iter(())
        for node in found:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__ and isinstance(file, str):
                yield from ((file, each) for each in node.body if isinstance(each, _FUNCTIONS))
