"""Calls of the subject's own functions and methods in a pass, of those whose names say that another one undoes them."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.inverse_names import Role, roles_of, roles_of_mode

_OWN = 3  # the rank of the subject's own code
_MOST_CALLS = 4  # of one function of one owner
_MOST_VALUES = 1 << 20
_LONGEST_NAME = 60
_OPTIONS = ("inverse", "invert", "undo")
_VARIABLE = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)


@dataclass(frozen=True)
class OwnCall:
    """A call that is given a tensor of numbers: what was called, and by which names; `first` is that tensor's name.

    `owner` is the object, the class or the file that its function belongs to; `holder` that object, if there is one.
    """

    name: str
    roles: frozenset[Role]
    owner: tuple[Any, ...]
    holder: Any
    code: CodeType
    function: Callable[..., Any]
    arguments: dict[str, Any]
    num_positional: int
    first: str

    @property
    def is_mode(self) -> bool:
        """Whether an argument says what it does, and not its name."""
        return self.name != self.code.co_name

    @property
    def x(self) -> Tensor:
        """What it was given."""
        tensor: Tensor = self.arguments[self.first]
        return tensor

    @property
    def others(self) -> dict[str, Any]:
        """The rest of it."""
        return {name: value for name, value in self.arguments.items() if name != self.first}

    def given(self, changed: dict[str, Any]) -> "OwnCall":
        """The same with other arguments."""
        return replace(self, arguments={**self.arguments, **changed})

    def again(self) -> Any:
        """What it answers."""
        values = [_copied(value) for value in self.arguments.values()]
        names = list(self.arguments)[self.num_positional :]
        return self.function(
            *values[: self.num_positional], **dict(zip(names, values[self.num_positional :], strict=True))
        )


@contextmanager
def own_calls(frames: FrameFilter) -> Iterator[list[OwnCall]]:
    """The calls with such names that are made while the region lasts, in their order."""
    found: list[OwnCall] = []
    own: dict[CodeType, bool] = {}
    counts: dict[tuple[Any, ...], int] = {}
    found_out: dict[tuple[Any, ...], bool] = {}

    def note(frame: FrameType, code: CodeType) -> None:
        if not _is_beside_another(frame, code, found_out):
            return
        call = _call_of(frame, code)
        if call is None or call.x.numel() > _MOST_VALUES:
            return
        key = call.owner, call.name
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _MOST_CALLS:
            found.append(replace(call, arguments={name: _copied(each) for name, each in call.arguments.items()}))

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code not in own:
            is_named = code.co_name == "forward" or bool(roles_of(code.co_name, code.co_qualname))
            own[code] = is_named and frames.rank_of(code) == _OWN
        if own[code]:
            attempt(lambda: note(frame, code))  # what it raised would be raised in the subject's frame

    with calls_seen_by(look):
        yield found


def _is_beside_another(frame: FrameType, code: CodeType, found_out: dict[tuple[Any, ...], bool]) -> bool:
    """Whether its class, its file or its caller has a function too that may undo it or that it may undo."""
    kind = type(frame.f_locals.get(code.co_varnames[0])) if code.co_argcount else None
    key = code, kind
    if key not in found_out:
        path = code.co_qualname.split(".")
        around = frame.f_globals.get(path[0]) if len(path) > 1 else None
        caller = frame.f_back.f_code if frame.f_back is not None else code
        names = {*dir(kind), *dir(around), *frame.f_globals, *caller.co_varnames, *caller.co_cellvars}
        roles = {replace(role, undoes=not role.undoes) for role in roles_of(code.co_name, code.co_qualname)}
        is_other = any(roles & roles_of(name, code.co_qualname) for name in names if len(name) <= _LONGEST_NAME)
        found_out[key] = code.co_name == "forward" or is_other
    return found_out[key]


def _call_of(frame: FrameType, code: CodeType) -> OwnCall | None:
    held = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    variable = sum(bool(code.co_flags & flag) for flag in _VARIABLE)
    if any(held.get(name) for name in code.co_varnames[count : count + variable]):
        return None
    arguments = {name: held[name] for name in code.co_varnames[:count]}
    found = _found(frame, code, arguments)
    if found is None:
        return None
    function, owner, holder, is_bound = found
    if is_bound:
        del arguments[code.co_varnames[0]]
    first = next((name for name, value in arguments.items() if isinstance(value, Tensor)), None)
    if first is None or not arguments[first].is_floating_point():
        return None
    name, roles = _named(code, arguments, holder)
    num_positional = code.co_argcount - is_bound
    return OwnCall(name, roles, owner, holder, code, function, arguments, num_positional, first) if roles else None


def _named(code: CodeType, arguments: dict[str, Any], holder: Any) -> tuple[str, frozenset[Role]]:
    """What the call says it does: by its name or by a mode that it is given."""
    for name, value in arguments.items():
        if isinstance(value, str) and (roles := roles_of_mode(value)):
            return f"{code.co_name}({name}={value!r})", roles
        if isinstance(value, bool) and name in _OPTIONS:
            about = frozenset({Role(("forward",), value, adds=True)})
            return f"{code.co_name}({name}={value})", about
    is_plain = code.co_name == "forward" and not callable(getattr(type(holder), "inverse", None))
    return code.co_name, frozenset() if is_plain else roles_of(code.co_name, type(holder).__name__)


def _found(
    frame: FrameType, code: CodeType, arguments: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Any, bool] | None:
    """What runs in the frame, what it belongs to, the object that it is a method of, and whether it is bound."""
    if arguments:
        holder = next(iter(arguments.values()))
        if not isinstance(holder, Tensor) and _is_code_of(getattr(type(holder), code.co_name, None), code):
            return getattr(holder, code.co_name), (id(holder),), holder, True
        if isinstance(holder, type) and _is_code_of(getattr(holder, code.co_name, None), code):
            return getattr(holder, code.co_name), (holder,), None, True
    path = code.co_qualname.split(".")
    outer = frame.f_back
    ways = (
        lambda: _reached(frame.f_globals[path[0]], path[1:]),
        lambda: outer.f_locals[code.co_name] if outer is not None else None,  # one within a function that calls it
    )
    for way in ways:
        reached: Any = attempt(way)
        if _is_code_of(reached, code):
            return reached, (code.co_filename, *path[:-1]), None, False
    return None


def _reached(value: Any, names: list[str]) -> Any:
    for name in names:
        value = getattr(value, name)
    return value


def _is_code_of(function: Any, code: CodeType) -> bool:
    function = getattr(function, "__func__", function)
    return callable(function) and getattr(inspect.unwrap(function), "__code__", None) is code


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    return value
