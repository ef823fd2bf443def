"""Functions of a file that are called in the place of another one, and use an argument that it leaves alone."""

import ast
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.converted_alone import converted_alone

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_used_in_its_place(code: CodeType, name: str, holder: Any, root: nn.Module) -> bool:
    """Whether a function that stands in this one's place elsewhere in its file uses an argument of that name.

    That is one of the same name, in a class that neither holds this one's nor is held by it, or one with the same
    arguments, where both are kept as values (a table of steps) or are called alike in one function (a fallback).
    """
    lines = linecache.getlines(code.co_filename)
    tree = attempt(lambda: ast.parse("".join(lines)))
    if not isinstance(tree, ast.Module):
        return False
    every = list(_functions(tree))
    own = next((each for each in every if code.co_firstlineno in _lines(each[1])), None)
    if own is None:
        return False
    for kind, other in every:
        if other is own[1] or name not in _arguments(other) or not _uses(other, name):
            continue
        if other.name == own[1].name:
            if not _hands_on(other) and not _are_nested(own[0], kind, holder, root):
                return True
        elif _arguments(other) == _arguments(own[1]) and _are_alternatives(tree, own[1].name, other.name):
            return True
    return False


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, _Function]]:
    """Each function of a file, with the class that it is a method of."""
    kinds = {
        id(each): node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, _FUNCTIONS)
    }
    yield from ((kinds.get(id(node)), node) for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))


def _lines(function: _Function) -> set[int]:
    return {function.lineno, *(each.lineno for each in function.decorator_list)}


def _arguments(function: _Function) -> list[str]:
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def _uses(function: _Function, name: str) -> bool:
    reads = any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(function)
    )
    return reads and name not in converted_alone(function, {})


def _hands_on(function: _Function) -> bool:
    """Whether it calls what has its own name: what it is given may be for that alone."""
    return any(isinstance(node, ast.Call) and _called(node) == function.name for node in ast.walk(function))


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _are_nested(own: ast.ClassDef | None, other: ast.ClassDef | None, holder: Any, root: nn.Module) -> bool:
    """Whether objects of one class are parts of the other's, or its body names the other."""
    if own is None or other is None or own is other:
        return False
    if _is_named_in(own.name, other) or _is_named_in(other.name, own):
        return True
    if not isinstance(holder, nn.Module):
        return False
    held = {type(part).__name__ for part in holder.modules()} - {type(holder).__name__}
    return other.name in held or any(
        type(part).__name__ == other.name and any(type(each) is type(holder) for each in part.modules())
        for part in root.modules()
    )


def _is_named_in(name: str, kind: ast.ClassDef) -> bool:
    return any(
        getattr(node, "id", getattr(node, "attr", "")) == name
        for statement in kind.body
        for node in ast.walk(statement)
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def _are_alternatives(tree: ast.Module, one: str, other: str) -> bool:
    """Whether both functions are handed around as values, or one function calls both with the same arguments."""
    callees = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    values = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and id(node) not in callees
    }
    if {one, other} <= values:
        return True
    for function in ast.walk(tree):
        if isinstance(function, _FUNCTIONS):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            if _given(calls, one) & _given(calls, other):
                return True
    return False


def _given(calls: list[ast.Call], name: str) -> set[str]:
    return {
        ast.dump(ast.Tuple([*call.args, *(each.value for each in call.keywords)]))
        for call in calls
        if _called(call) == name
    }
