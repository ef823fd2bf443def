"""Whether a function, by its source, calls for something outside: files, processes, the network, a training step."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from nsa_doctor.core.errors import Caught, attempt

_OUTSIDE = re.compile(
    r"torch\.distributed|\bdist\.|\binput\(|subprocess|urlopen|download|from_pretrained|torch\.(load|save)|wandb|mkdir"
    r"|\bopen\(|os\.|sys\.|\bexit\(|barrier\(|write_(text|bytes)|environ|Thread\(|Process\(|socket|requests\.|sleep\("
    r"|pickle|backward\(|optim|while True|\.generate\(|setattr\(|\bglobal\b|\bprint\("
)


def source_of(value: Any) -> str:
    """Of a function or a class; empty where it cannot be read."""
    text = attempt(lambda: textwrap.dedent(inspect.getsource(inspect.unwrap(value))))
    return "" if isinstance(text, Caught) else text


def sources_within_call(function: Callable[..., Any]) -> Iterator[str]:
    """That of the function, of the functions and classes of its file that it names, and of those that these name."""
    beside = getattr(inspect.unwrap(function), "__globals__", {})
    waiting, seen = [source_of(function)], set[str]()
    yield waiting[0]
    while waiting:
        for name in set(re.findall(r"\w+", waiting.pop())) - seen:
            seen.add(name)
            found: Any = beside.get(name)
            is_own = inspect.isroutine(found) or inspect.isclass(found)
            if is_own and getattr(found, "__module__", "") == beside.get("__name__"):
                waiting.append(source_of(found))
                yield waiting[-1]


def reaches_out(text: str) -> bool:
    """Whether code calls for something outside, whatever its comments and docstrings are about."""
    tree = attempt(lambda: ast.parse(text))
    if isinstance(tree, Caught):
        return True
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return _OUTSIDE.search(ast.unparse(tree)) is not None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
