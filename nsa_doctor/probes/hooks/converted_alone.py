"""Arguments that a function gives a new value of themselves, and of which nothing else is ever made."""

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.unread_variables import READING_ALL

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_PURE_BUILTINS = frozenset(
    {"int", "float", "bool", "str", "tuple", "list", "dict", "set", "len", "range", "min", "max", "abs", "sum", "round"}
    | {"isinstance", "callable", "getattr", "hasattr", "map", "zip", "sorted", "reversed", "any", "all", "type"}
)
_PURE_PACKAGES = frozenset({"torch", "numpy", "math", "einops", "operator", "itertools", "functools"})
_WRITING = frozenset(
    {"append", "extend", "insert", "pop", "popleft", "update", "setdefault", "add", "remove", "discard", "clear", "put"}
    | {"write", "save", "send", "record", "register", "backward", "step", "set"}
)
_OF_KIND = frozenset({"shape", "ndim", "dtype", "device", "dim", "size", "numel", "is_floating_point", "requires_grad"})
_ASKING_KIND = frozenset({"isinstance", "len", "callable", "is_tensor", "is_floating_point", "type", "hasattr"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def converted_alone(function: _Function, known: Mapping[str, Any]) -> dict[str, list[ast.stmt]]:
    """Such arguments of a function, with the statements that convert them; `known` are the globals that it sees.

    A value is no use of an argument where it goes into the argument itself, or into a variable that nothing reads, and
    neither is a question that decides about that alone, nor one of shapes and types that raises.
    """
    names = _loaded(function)
    if set(READING_ALL) & names.keys() or "super" in names:
        return {}
    arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    dead = {name for name in (*arguments, *_stored(function)) if name not in ("self", "cls") and name[0] != "_"}
    dead -= _held_otherwise(function)
    while True:
        allowed = _without_use(function, dead, known)
        read = {name for name in dead if any(id(node) not in allowed for node in names.get(name, ()))}
        if not read:
            break
        dead -= read
    found = {name: _conversions(function, name) for name in arguments if name in dead}
    return {name: each for name, each in found.items() if each}


def _loaded(function: _Function) -> dict[str, list[ast.Name]]:
    found: dict[str, list[ast.Name]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(node)
    return found


def _stored(function: _Function) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _held_otherwise(function: _Function) -> set[str]:
    """Names that are taken apart, looped over, deleted, written in place or shared: of those nothing is said."""
    found: set[str] = set()
    plain: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            plain |= {id(target) for target, _ in _pairs(node)}
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found |= set(node.names)
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)) and node is not function:
            within = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            found |= within  # a name of its own, that is read within
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in plain:
            found.add(node.id)
    return found


def _pairs(node: ast.AST) -> list[tuple[ast.Name, ast.expr]]:
    """The plain names that an assignment gives values to, and which."""
    if isinstance(node, ast.AnnAssign):
        return [(node.target, node.value)] if isinstance(node.target, ast.Name) and node.value is not None else []
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name):
        return [(target, value)]
    if not isinstance(target, ast.Tuple):
        return []
    values = value.elts if isinstance(value, ast.Tuple) else _mapped(value)
    if len(values) != len(target.elts):
        return []
    return [(one, of) for one, of in zip(target.elts, values, strict=True) if isinstance(one, ast.Name)]


def _mapped(value: ast.expr) -> list[ast.expr]:
    """Of `map(function, (a, b))` what each is made of."""
    match value:
        case ast.Call(ast.Name("map"), [function, ast.Tuple(elements)]):
            return [ast.Call(func=function, args=[each], keywords=[]) for each in elements]
    return []


def _without_use(function: _Function, dead: set[str], known: Mapping[str, Any]) -> set[int]:
    """Reads of names that come to nothing where these names do."""
    allowed: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target, value in _pairs(node):
                if target.id in dead and _is_pure(value, known):
                    allowed |= _ids(value)
        elif isinstance(node, ast.If) and _decides_nothing([*node.body, *node.orelse], dead, known):
            raises = any(isinstance(each, ast.Raise) for part in (*node.body, *node.orelse) for each in ast.walk(part))
            allowed |= _ids_of_kind(node.test) if raises else _ids(node.test)
        elif isinstance(node, ast.Assert):
            allowed |= _ids_of_kind(node.test)
    return allowed


def _decides_nothing(body: list[ast.stmt], dead: set[str], known: Mapping[str, Any]) -> bool:
    """Whether statements do no more than to give these names values, or to raise."""
    for each in body:
        if isinstance(each, ast.If):
            if not _decides_nothing([*each.body, *each.orelse], dead, known):
                return False
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            pairs = _pairs(each)
            if not pairs or not all(target.id in dead and _is_pure(value, known) for target, value in pairs):
                return False
        elif not isinstance(each, (ast.Pass, ast.Raise, ast.Assert)):
            return False
    return True


def _ids(node: ast.AST) -> set[int]:
    return {id(each) for each in ast.walk(node)}


def _ids_of_kind(test: ast.expr) -> set[int]:
    """Names in a condition that are asked for their shape or type alone: one of their values may be refused."""
    found: set[int] = set()
    for node in ast.walk(test):
        called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if called in _ASKING_KIND or (isinstance(node, ast.Attribute) and node.attr in _OF_KIND):
            found |= _ids(node)
        elif isinstance(test, ast.Compare) and node is test and _is_none_refused(test):
            found |= _ids(test.left)
    return found


def _is_none_refused(node: ast.Compare) -> bool:
    return isinstance(node.ops[0], ast.Is) and ast.unparse(node.comparators[0]) == "None"


def _is_pure(value: ast.expr, known: Mapping[str, Any], *, is_inner: bool = False) -> bool:
    """Whether a value is made without any effect beside it, as far as can be said."""
    for node in ast.walk(value):
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return False
        if isinstance(node, ast.Call) and not _is_pure_call(node, known, is_inner=is_inner):
            return False
    return True


def _is_pure_call(call: ast.Call, known: Mapping[str, Any], *, is_inner: bool) -> bool:
    if any(each.arg in ("out", "inplace") for each in call.keywords):
        return False
    if isinstance(call.func, ast.Attribute):
        name, root = call.func.attr, _root(call.func)
        is_writing = (name.endswith("_") and not name.endswith("__")) or name in _WRITING
        return not is_writing and root not in ("self", "cls") and not _is_foreign(root, known)
    if isinstance(call.func, ast.Lambda):
        return True  # what it calls is looked at by itself
    if not isinstance(call.func, ast.Name):
        return False
    name = call.func.id
    meant = known.get(name, getattr(builtins, name, None))
    if name in _PURE_BUILTINS or str(getattr(meant, "__module__", "")).partition(".")[0] in _PURE_PACKAGES:
        return True
    if is_inner:
        return name not in known and not hasattr(builtins, name)  # what it is handed itself
    return isinstance(meant, FunctionType) and _is_pure_function(meant)


def _is_foreign(root: str, known: Mapping[str, Any]) -> bool:
    """Whether a name is a module whose functions may do anything."""
    meant = known.get(root)
    return isinstance(meant, ModuleType) and meant.__name__.partition(".")[0] not in _PURE_PACKAGES | {math.__name__}


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_pure_function(function: FunctionType) -> bool:
    """Whether a small function makes its value of what it is given, and does nothing else."""
    source = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0])
    if not isinstance(source, ast.FunctionDef):
        return False
    for node in ast.walk(source):
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Await, ast.Yield, ast.YieldFrom, ast.Delete)):
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call) and not _is_pure_call(node, function.__globals__, is_inner=True):
            return False
    return True


def _conversions(function: _Function, name: str) -> list[ast.stmt]:
    """The statements that give an argument a value, if one of them makes that of the argument itself."""
    looped = {id(node) for loop in ast.walk(function) if isinstance(loop, _LOOPS) for node in ast.walk(loop)}
    found: list[ast.stmt] = []
    is_of_itself = False
    for node in ast.walk(function):
        values = [value for target, value in _pairs(node) if target.id == name]
        if values and isinstance(node, ast.stmt):
            found.append(node)
            is_of_itself |= any(
                _reads(value, name) and not _is_update(value, name, is_looped=id(node) in looped) for value in values
            )
    return sorted(found, key=lambda node: node.lineno) if is_of_itself else []


def _reads(value: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def _is_update(value: ast.expr, name: str, *, is_looped: bool) -> bool:
    """Whether it moves the argument on by something, as a count or a time: in a loop, by any arithmetic."""
    if is_looped and any(_reads(node, name) for node in ast.walk(value) if isinstance(node, ast.BinOp)):
        return True
    moved, by = value, list[ast.expr]()
    while isinstance(moved, ast.BinOp) and isinstance(moved.op, (ast.Add, ast.Sub)):
        if isinstance(moved.op, ast.Add) and _reads(moved.right, name):
            by, moved = [*by, moved.left], moved.right
        else:
            by, moved = [*by, moved.right], moved.left
    return bool(by) and isinstance(moved, ast.Name) and not any(_reads(each, name) for each in by)


def read_in_its_place(function: _Function, name: str) -> Iterator[tuple[str, int]]:
    """(sibling, line) where a call with another argument that shares a word with this one is made a second time."""
    arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    words = set(name.split("_"))
    for sibling in arguments:
        if sibling == name or not words & set(sibling.split("_")):
            continue
        made: dict[str, list[int]] = {}
        for node in ast.walk(function):
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Call) and any(
                isinstance(each, ast.Name) and each.id == sibling for each in ast.walk(value)
            ):
                made.setdefault(ast.dump(value), []).append(value.lineno)
        is_later = arguments.index(name) > arguments.index(sibling)
        yield from ((sibling, max(lines) if is_later else min(lines)) for lines in made.values() if len(lines) > 1)
