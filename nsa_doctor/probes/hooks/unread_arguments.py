"""Arguments that modules are constructed with and whose constructors never read them."""

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.internal import frame_above
from nsa_doctor.probes.hooks.unread_variables import READING_ALL


@dataclass(frozen=True)
class UnreadArgument:
    """What the constructor of a module was given by that name, and does nothing with: `code` is the constructor's.

    is_meant: whether whoever called wrote down the class by its name and, where that is a constructor of the same
    package, no constant for the argument: one that nobody can set is left over, and of a class by another name (one of
    several that take each other's place, or a base) not every setting is for it. is_from_outside: whether the caller
    stands in another package than the class.
    """

    module: nn.Module
    name: str
    value: Any
    code: CodeType
    is_meant: bool = True
    is_from_outside: bool = False

    @property
    def owner(self) -> type | None:
        """The class whose constructor it is; None where that is wrapped beyond recognition."""
        for kind in type(self.module).__mro__:
            given: Any = vars(kind).get("__init__")
            if callable(given) and getattr(inspect.unwrap(given), "__code__", None) is self.code:
                return kind
        return None

    @property
    def default(self) -> Any:
        """What the argument is where it is not given; `inspect.Parameter.empty` where it has to be."""
        if self.owner is None:
            return inspect.Parameter.empty
        constructor = inspect.unwrap(vars(self.owner)["__init__"])
        return inspect.signature(constructor).parameters[self.name].default


@contextmanager
def unread_arguments(
    is_wanted: Callable[[str, Any], bool], reads: Callable[[CodeType, str], bool] | None = None
) -> Iterator[list[UnreadArgument]]:
    """A region in which the arguments of that name and value are noted that no constructor of a module reads.

    reads: whether a constructor reads an argument; by default, whether its code does anywhere.
    """
    found: list[UnreadArgument] = []
    original = nn.Module.__init__

    @wraps(original)
    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        found.extend(_unread(self, frame_above(1), is_wanted, reads or _reads))
        original(self, *args, **kwargs)

    with patch.object(nn.Module, "__init__", noting):
        yield found


def _unread(
    module: nn.Module,
    frame: FrameType | None,
    is_wanted: Callable[[str, Any], bool],
    reads: Callable[[CodeType, str], bool],
) -> Iterator[UnreadArgument]:
    """Of the constructors that are running for this module, from the innermost on."""
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is module:
        code = frame.f_code
        for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(name)
            if is_wanted(name, value) and not reads(code, name):
                is_from_outside = frame.f_back is not None and _package(frame.f_back) != _package(frame)
                yield UnreadArgument(module, name, value, code, _is_meant(module, frame, name), is_from_outside)
        frame = frame.f_back


def _is_meant(module: nn.Module, frame: FrameType, name: str) -> bool:
    caller = frame.f_back
    found = None if caller is None else attempt(lambda: inspect.getsourcelines(caller.f_code))
    if caller is None or not isinstance(found, tuple):
        return False
    source = attempt(lambda: ast.parse(textwrap.dedent("".join(found[0]))))
    if not isinstance(source, ast.Module):
        return False
    line = caller.f_lineno - max(found[1], 1) + 1  # of a comprehension the source is that of the function around it
    is_own = "__init__" in caller.f_code.co_qualname.split(".") and _package(caller) == _package(frame)
    return any(
        isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or line)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == type(module).__name__
        and all(each.arg is not None for each in node.keywords)  # a whole configuration is for many
        and not (is_own and any(each.arg == name and isinstance(each.value, ast.Constant) for each in node.keywords))
        for node in ast.walk(source)
    )


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _reads(code: CodeType, name: str) -> bool:
    """Whether a function reads its variable of that name, or hands it to one inside it."""
    if name in code.co_cellvars or not set(READING_ALL).isdisjoint(code.co_names):
        return True
    loads = (each.argval for each in dis.get_instructions(code) if "LOAD" in each.opname)
    return any(name == each or (isinstance(each, tuple) and name in each) for each in loads)
