"""Arguments that a function takes for another and does not hand on, or hands on under another's name."""

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from nsa_doctor.checks._shared.settings_given import is_said_to_be_meant
from nsa_doctor.checks._shared.unread_parameters import unread_parameters
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.own_functions import own_functions

_OF_MODULES = ("__init__", "forward", "__call__", "extra_repr")
_OF_TENSORS = frozenset({"torch", "F", "np", "numpy", "math", "einops", "itertools"})  # whose functions take no others'


@dataclass(frozen=True)
class LostArgument:
    """By which function, in which line of its file, and what becomes of it."""

    module: nn.Module
    code: CodeType
    line: int
    what: str


def lost_arguments(sp: BuiltModule) -> Iterator[LostArgument]:
    """Of the methods of all its parts, torch's own apart, and of the functions within reach; each once."""
    seen: set[CodeType] = set()
    for part in sp.module.modules():
        for function in _functions(part):
            code = function.__code__
            tree = None if code in seen else _tree(code)
            seen.add(code)
            if tree is None:
                continue
            lost = [*_keywords_left_behind(tree), *_handed_anothers(tree, type(part))]
            if tree.name not in _OF_MODULES:  # what those take and leave alone is asked for by other checks
                lost += unread_parameters(tree, function, type(part))
            for node, what in lost:
                yield LostArgument(part, code, code.co_firstlineno + node.lineno - 1, what)
    for each in own_functions(sp, lambda _name: True):
        function = inspect.unwrap(each.function)
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        tree = _tree(function.__code__)
        for node, what in unread_parameters(tree, function, None) if tree is not None else ():
            yield LostArgument(sp.module, function.__code__, function.__code__.co_firstlineno + node.lineno - 1, what)


def _functions(part: nn.Module) -> Iterator[FunctionType]:
    """Its methods, and functions that were put in the place of one."""
    kinds = [kind for kind in type(part).__mro__ if kind is not object and kind.__module__.partition(".")[0] != "torch"]
    held = [*(vars(kind).values() for kind in kinds), vars(part).values()]
    yield from (each for values in held for each in list(values) if isinstance(each, FunctionType))


def _tree(code: CodeType) -> ast.FunctionDef | None:
    """The definition, unless it says that something is not meant to be used."""
    source = attempt(lambda: inspect.getsource(code))
    if not isinstance(source, str) or is_said_to_be_meant(source):
        return None
    tree = attempt(lambda: ast.parse(textwrap.dedent(source)).body[0])
    return tree if isinstance(tree, ast.FunctionDef) else None


def _keywords_left_behind(function: ast.FunctionDef) -> Iterator[tuple[ast.Call, str]]:
    """A call that is handed all positional arguments and none of the named ones, which nothing reads."""
    positional, named = function.args.vararg, function.args.kwarg
    if positional is None or named is None or named.arg.startswith("_"):
        return
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if read & {named.arg, "locals", "vars", "super"}:
        return
    for call in _calls(function):
        starred = [each.value for each in call.args if isinstance(each, ast.Starred)]
        if any(isinstance(each, ast.Name) and each.id == positional.arg for each in starred) and not _is_plain(
            call.func
        ):
            yield call, f"`{ast.unparse(call)}` is handed *{positional.arg} and not **{named.arg}, which nothing reads"
            return


def _is_plain(callee: ast.expr) -> bool:
    """Whether it is a builtin, or a function of a library of tensors."""
    root = callee
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and (root.id in _OF_TENSORS or hasattr(builtins, root.id))


def _handed_anothers(function: ast.FunctionDef, kind: type) -> Iterator[tuple[ast.Call, str]]:
    """`Part(n_d=n_d, n_a=n_d)` in a constructor that is given n_a and has no use for it."""
    if function.name != "__init__":
        return
    arguments = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    for call in _calls(function):
        handed = {each.arg: each.value.id for each in call.keywords if each.arg and isinstance(each.value, ast.Name)}
        for name, value in handed.items():
            is_anothers = name != value and {name, value} <= arguments and handed.get(value) == value
            if is_anothers and not _has_a_use(function, name) and not _is_read(kind, name):
                called = ast.unparse(call.func)
                yield call, f"{called} is given {name}={value} beside {value}={value}, and {name} itself is not used"


def _has_a_use(function: ast.FunctionDef, name: str) -> bool:
    """Whether the constructor reads an argument for more than to keep it under its name."""
    kept = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(_is_attribute(target, name) for target in node.targets)
    ]
    loads = (node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) and not any(node is each for each in kept) for node in loads)


def _is_attribute(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == name


def _is_read(kind: type, name: str) -> bool:
    """Whether a class of its own, or one that it is made of, reads what is kept under that name."""
    kinds = [each for each in kind.__mro__ if each is not object and each is not nn.Module]
    texts: list[Any] = [attempt(lambda each=each: inspect.getsource(each)) for each in kinds]
    reading = re.compile(rf"\.{name}\b(?!\s*(:[^=\n]+)?=[^=])")
    return any(not isinstance(text, str) or reading.search(text) for text in texts)


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))
