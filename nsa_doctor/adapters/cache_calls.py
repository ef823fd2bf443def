"""Which calls an expression may make that is evaluated to find a cache: those that make values, and reach no further.

The subject is only looked at: what may open files, ask the network or train is not run, whatever its name.
"""

import ast
import builtins
import collections
import inspect
import re
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from nsa_doctor.adapters.decoding_starts import FIRST_STATE, may_be_made

OF_A_CLASS = re.compile(
    r"(empty|new|create|initial|init|zeros?|make|fresh|start|begin|build|allocate|for_\w+|from_(model|module|config|cfg))"
)
_BUILTINS = (len, range, list, dict, tuple, set, int, float, bool, min, max, next, iter, zip, enumerate, reversed)
_CONTAINERS = (collections.deque, collections.defaultdict, collections.OrderedDict, SimpleNamespace)
_OF_TORCH = ("zeros", "ones", "empty", "full", "tensor", "arange", "zeros_like", "ones_like", "empty_like", "full_like")
_OF_VALUES = ("size", "dim", "numel", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "parameters")
_BEYOND = (ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda, ast.NamedExpr)


def only_makes(expression: ast.expr, names: Mapping[str, Any], packages: Sequence[str]) -> bool:
    """Whether each call in it, by what its names stand for, makes a value: a container, a tensor, a first state.

    Classes of the subject's own may be made, and methods and functions are called that are named for a first state.
    """
    nodes = list(ast.walk(expression))
    if any(isinstance(node, _BEYOND) for node in nodes):
        return False
    return all(_may_be_called(node.func, names, packages) for node in nodes if isinstance(node, ast.Call))


def _may_be_called(called: ast.expr, names: Mapping[str, Any], packages: Sequence[str]) -> bool:
    value = _known(called, names)
    if isinstance(value, type):
        return value in (*_BUILTINS, *_CONTAINERS) or may_be_made(value, packages)
    if not isinstance(called, (ast.Name, ast.Attribute)):
        return False
    if inspect.isbuiltin(value):
        return value in _BUILTINS or any(value is getattr(torch, name) for name in _OF_TORCH)
    name = called.id if isinstance(called, ast.Name) else called.attr
    if FIRST_STATE.fullmatch(name):
        return True
    if isinstance(called, ast.Name):
        return False
    owner = _known(called.value, names)
    if isinstance(owner, type):
        return may_be_made(owner, packages) and OF_A_CLASS.fullmatch(name) is not None
    return not isinstance(owner, ModuleType) and name in _OF_VALUES


def _known(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name stands for, or an attribute of a class or of a file; None for all else."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id, getattr(builtins, expression.id, None))
    if isinstance(expression, ast.Attribute):
        owner = _known(expression.value, names)
        return getattr(owner, expression.attr, None) if isinstance(owner, (ModuleType, type)) else None
    return None
