"""Containers that hold so many entries at most: those that say so, and those whose code takes out what it put in."""

import ast
import functools
import gc
import inspect
import textwrap
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt

_MOST_TENSORS = 6  # each costs a walk through all that the collector knows
_DEEPEST = 3
_LRU_CACHE: Any = type(functools.cache(lambda: None))
_REMOVING = frozenset({"pop", "popitem", "popleft", "clear"})


def are_in_bounded_containers(is_meant: Callable[[Tensor], bool]) -> bool:
    """Whether every such tensor that Python knows lies in a container that states its bound: a deque, an lru_cache."""
    found = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    meant = [tensor for tensor in found if is_meant(tensor)][:_MOST_TENSORS]
    apart = {id(found), id(meant)}
    return bool(meant) and all(_is_bounded(tensor, apart, _DEEPEST) for tensor in meant)


def takes_out(owner: Any, attribute: str) -> bool:
    """Whether the code of the owner's class takes out of that attribute."""
    return any(_removes(node, attribute) for node in ast.walk(_source(owner)))


def may_reach(owner: Any, attribute: str) -> bool:
    """Whether the owner, or the code of its class, names a whole number greater than how much the attribute holds."""
    held = getattr(owner, attribute, None)
    if not isinstance(held, (list, dict, set, deque)):
        return False
    numbers = [node.value for node in ast.walk(_source(owner)) if isinstance(node, ast.Constant)]
    numbers += [value for name, value in getattr(owner, "__dict__", {}).items() if not name.startswith("_")]
    return any(type(number) is int and number > len(held) for number in numbers)


def _source(owner: Any) -> ast.AST:
    read = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(type(owner)))))
    return ast.Module(body=[], type_ignores=[]) if isinstance(read, Caught) else read


def _is_bounded(value: Any, apart: set[int], depth: int) -> bool:
    """Whether some container around the value, or around that one, states its bound."""
    for around in gc.get_referrers(value) if depth else ():
        if id(around) in apart or inspect.isframe(around):
            continue
        if isinstance(around, deque) and around.maxlen is not None:
            return True
        if isinstance(around, _LRU_CACHE) and around.cache_parameters()["maxsize"] is not None:
            return True
        if isinstance(around, (tuple, list, dict, deque)) and _is_bounded(around, apart, depth - 1):
            return True
    return False


def _removes(node: ast.AST, attribute: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr=owner))):
            return name in _REMOVING and owner == attribute
        case ast.Delete(targets=targets):
            return any(_is_part(target, attribute) for target in targets)
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
            return name == attribute and _is_part(value, attribute)
    return False


def _is_part(node: ast.AST, attribute: str) -> bool:
    """Whether it is self.attribute[...]."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == attribute
