"""Parameters of a function that nothing in it reads, though what it calls takes them by the same name."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from nsa_doctor.core.errors import Caught, attempt

_READING_ALL = frozenset({"locals", "vars", "eval", "exec"})


def unread_parameters(
    tree: ast.FunctionDef, function: FunctionType, holder: type | None
) -> Iterator[tuple[ast.Call, str]]:
    """A call that leaves out what its function is given under that name; `holder` is the class of a method.

    Of settings, which have a number, a flag or a word for a default: None stands for what others of an interface take.
    Where several functions are called that could take it, the function may have another use for it.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    unread = _settings(function) - used
    if used & _READING_ALL or not unread or _overrides(function, holder):
        return
    leaving: dict[FunctionType, list[tuple[ast.Call, list[str]]]] = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        callee = None if ast.unparse(call.func) in stored else _resolved(call.func, function, holder)
        if not isinstance(callee, FunctionType) or callee is function or _is_one_of_several(function, callee, holder):
            continue
        if names := _left_out(call, unread, callee):
            leaving.setdefault(callee, []).append((call, names))
    if len(leaving) == 1:
        call, names = next(iter(leaving.values()))[0]
        left = " and ".join(names)
        yield call, f"`{ast.unparse(call)}` is not given {left}, which {tree.name} takes and nothing reads"


def _settings(function: FunctionType) -> set[str]:
    """The parameters that have a default other than None."""
    parameters = _parameters(function)
    plain = (name for name, each in parameters.items() if isinstance(each.default, (bool, int, float, str)))
    return {name for name in plain if not name.startswith("_")}


def _parameters(function: FunctionType) -> Mapping[str, inspect.Parameter]:
    signature = attempt(lambda: inspect.signature(function))
    return {} if isinstance(signature, Caught) else signature.parameters


def _is_one_of_several(function: FunctionType, callee: FunctionType, holder: type | None) -> bool:
    """Whether another beside it and what it calls takes the same: an interface, of which each uses what it can."""
    names = list(_parameters(function))
    beside = list((vars(holder) if holder is not None else function.__globals__).values())
    others = (each for each in beside if isinstance(each, FunctionType) and each not in (function, callee))
    return any(list(_parameters(each)) == names for each in others if each.__module__ == function.__module__)


def _overrides(function: FunctionType, holder: type | None) -> bool:
    """Whether a class above has a method of that name, whose arguments it has to take."""
    above = [] if holder is None else holder.__mro__
    own = next((at for at, kind in enumerate(above) if vars(kind).get(function.__name__) is function), len(above))
    return any(function.__name__ in vars(kind) for kind in above[own + 1 :])


def _left_out(call: ast.Call, unread: set[str], callee: FunctionType) -> list[str]:
    """Which of these the callee takes, with a default, and is not given."""
    if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        return []
    parameters = _parameters(callee)
    names = list(parameters)
    has_self = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
    bound = {*names[has_self:][: len(call.args)], *(each.arg for each in call.keywords)}
    empty = inspect.Parameter.empty
    return [name for name in names if name in unread - bound and parameters[name].default is not empty]


def _resolved(callee: ast.expr, function: FunctionType, holder: type | None) -> Any:
    """The function that a name, or a name of a module or of the method's own object, stands for."""
    names: list[str] = []
    while isinstance(callee, ast.Attribute):
        names.insert(0, callee.attr)
        callee = callee.value
    if not isinstance(callee, ast.Name):
        return None
    value: Any = holder if callee.id == "self" and holder is not None else function.__globals__.get(callee.id)
    for name in names:
        value = inspect.getattr_static(value, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value
