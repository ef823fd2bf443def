"""What a subject does under a flag of its environment: where its sources read it, and how much work it makes."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.identity import loaded_files


def readers(packages: Sequence[str], flag: str) -> Iterator[Place]:
    """Lines of loaded modules of these packages that name the flag, in words of their own and not in a sentence."""
    for file in sorted(loaded_files(packages).values()):
        tree = attempt(lambda file=file: _parsed(file, flag))
        if tree is None or isinstance(tree, Caught):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == flag:
                yield Place(file=file, line=node.lineno, function=_function_at(tree, node.lineno))


def operations_of(call: Any, module: nn.Module, x: Tensor, flags: dict[str, str]) -> int:
    """How many operations `call(module, x)` starts while these flags are set."""
    counter = OperationCounter()
    with patch.dict("os.environ", flags), torch.no_grad(), counter:
        call(module, x)
    return counter.count


def _parsed(file: str, word: str) -> ast.Module | None:
    text = Path(file).read_text(encoding="utf-8")
    return ast.parse(text) if word in text else None


def _function_at(tree: ast.Module, line: int) -> str:
    """The innermost function that holds a line."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    return max(around, key=lambda each: each.lineno).name if around else "<module>"


class OperationCounter(DispatchWatcher):
    """Counts the operations that start in its region."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and count it."""
        self.count += 1
        return func(*args, **kwargs)
