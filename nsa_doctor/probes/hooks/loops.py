"""Which loop of a function's source a call that does not return is going round in."""

import ast
import linecache
from collections.abc import Collection, Iterator
from types import CodeType

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def loop_around(code: CodeType, lines: Collection[int]) -> tuple[int, int] | None:
    """First and last line of the innermost loop of this code's own that holds all these lines; None without source."""
    text = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, SystemError):  # not Python, or parsed in two threads at a time
        return None
    found = [
        (loop.lineno, loop.end_lineno or loop.lineno)
        for loop in _loops(tree, code)
        if all(loop.lineno <= line <= (loop.end_lineno or loop.lineno) for line in lines)
    ]
    return min(found, key=lambda loop: loop[1] - loop[0], default=None)


def _loops(tree: ast.Module, code: CodeType) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    """The loops in the body of that function, those of functions defined in it apart."""
    waiting: list[ast.AST] = [tree] if code.co_name == "<module>" else _definitions(tree, code)
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, _LOOPS):
                yield node
            if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
                waiting.append(node)


def _definitions(tree: ast.Module, code: CodeType) -> list[ast.AST]:
    """The function of that name that starts on that line, its decorators included."""
    named = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and node.name == code.co_name]
    return [node for node in named if code.co_firstlineno in (node.lineno, *(d.lineno for d in node.decorator_list))]
