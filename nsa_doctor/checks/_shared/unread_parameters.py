"""Parameters of a function that nothing in it reads, though what it calls takes them by the same name."""

import ast
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from nsa_doctor.core.errors import Caught, attempt

_READING_ALL = frozenset({"locals", "vars", "eval", "exec"})


def unread_parameters(
    tree: ast.FunctionDef, function: FunctionType, holder: type | None
) -> Iterator[tuple[ast.Call, str]]:
    """A call that leaves out what its function is given under that name; `holder` is the class of a method.

    Where several calls could take it, or nothing is called that does, the function may have another use for it.
    """
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if read & _READING_ALL:
        return
    taken = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    unread = [each.arg for each in taken if each.arg not in read and not each.arg.startswith("_")]
    unread = [name for name in unread if name not in ("self", "cls")]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if unread else []
    leaving = [(call, names) for call in calls if (names := _left_out(call, unread, function, holder))]
    if len(leaving) == 1:
        call, names = leaving[0]
        shown = " and ".join(names)
        yield call, f"`{ast.unparse(call)}` is not given {shown}, which {tree.name} takes and nothing reads"


def _left_out(call: ast.Call, unread: list[str], function: FunctionType, holder: type | None) -> list[str]:
    """Which of these the callee takes, with a default, and is not given."""
    callee = _resolved(call.func, function, holder)
    if not isinstance(callee, FunctionType) or callee.__code__ is function.__code__:
        return []
    if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        return []
    signature = attempt(lambda: inspect.signature(callee))
    if isinstance(signature, Caught):
        return []
    parameters = list(signature.parameters.values())
    has_self = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self"
    bound = {each.name for each in parameters[has_self:][: len(call.args)]}
    bound |= {each.arg for each in call.keywords if each.arg}
    with_default = {each.name for each in parameters if each.default is not each.empty}
    return [name for name in unread if name in with_default - bound]


def _resolved(callee: ast.expr, function: FunctionType, holder: type | None) -> Any:
    """The function that a name, or a name of a module or of the method's own object, stands for."""
    names: list[str] = []
    while isinstance(callee, ast.Attribute):
        names.insert(0, callee.attr)
        callee = callee.value
    if not isinstance(callee, ast.Name):
        return None
    if callee.id == "self" and holder is not None:
        value: Any = holder
    else:
        value = function.__globals__.get(callee.id)
    for name in names:
        value = inspect.getattr_static(value, name, None)
    return value
