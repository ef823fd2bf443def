"""What a process has read of its environment once and kept: read again in a copy of it."""

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.identity import loaded_files

_READING = frozenset({"environ", "getenv"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def forget_environment(packages: Sequence[str]) -> None:
    """Clear what functions of these packages keep of answers that they have from the environment."""
    for kept, _ in _keeping(packages):
        kept.cache_clear()


def readers_that_keep(packages: Sequence[str]) -> Iterator[Place]:
    """Where functions are defined that read the environment and keep what they answer (`functools.cache`)."""
    for _, code in _keeping(packages):
        yield Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


def _keeping(packages: Sequence[str]) -> Iterator[tuple[Any, CodeType]]:
    for name in loaded_files(packages):
        for value in list(vars(sys.modules[name]).values()):
            code = getattr(getattr(value, "__wrapped__", None), "__code__", None)
            if isinstance(code, CodeType) and _READING & set(code.co_names) and hasattr(value, "cache_clear"):
                yield value, code


def evaluate_defaults_again(module: str, tree: ast.Module | None, is_meant: Callable[[ast.AST], bool]) -> None:
    """Evaluate those defaults of arguments of a module's functions and methods that are meant once more."""
    for holder, node in _functions(sys.modules[module], tree):
        function = getattr(vars(holder).get(node.name), "__wrapped__", vars(holder).get(node.name))
        if not isinstance(function, FunctionType) or not any(map(is_meant, node.args.defaults)):
            continue
        values = list(function.__defaults__ or ())
        for index, default in enumerate(node.args.defaults):
            if is_meant(default) and index < len(values):
                expression = ast.Expression(default)
                again = attempt(
                    lambda expression=expression: eval(  # noqa: S307 (the subject's own line)
                        compile(expression, "<again>", "eval"), vars(sys.modules[module])
                    )
                )
                values[index] = values[index] if isinstance(again, Caught) else again
        function.__defaults__ = tuple(values)


def _functions(module: Any, tree: ast.Module | None) -> Iterator[tuple[Any, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and of its classes, each with what holds it."""
    for node in () if tree is None else tree.body:
        if isinstance(node, _FUNCTIONS):
            yield module, node
        elif isinstance(node, ast.ClassDef) and isinstance(holder := getattr(module, node.name, None), type):
            yield from ((holder, each) for each in node.body if isinstance(each, _FUNCTIONS))
