"""Arguments that calls in a pass give a value, and that the functions called do no more than convert."""

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.converted_alone import converted_alone, read_in_its_place
from nsa_doctor.probes.hooks.same_interface import is_used_in_its_place
from nsa_doctor.probes.internal import is_transformed

_OWN = 3  # the rank of the subject's own code


@dataclass(frozen=True)
class GivenForNothing:
    """The argument and its function, the line to look at, and what is read there in its place, if that is known."""

    name: str
    place: Place
    instead: str
    source: str


@dataclass
class _Seen:
    """A function that ran: what it saw of globals, the object it is a method of, and arguments that were given it.

    One that torch maps over rows is given an index with each row, whether it needs one or not.
    """

    known: dict[str, Any]
    holder: Any
    given: set[str] = field(default_factory=set)
    is_mapped: bool = False


class FunctionsRun:
    """The subject's own functions that run in regions and assign to an argument of theirs."""

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._seen: dict[CodeType, _Seen] = {}
        self._assigned: dict[CodeType, tuple[str, ...]] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Until the region ends."""
        with calls_seen_by(self._look):
            yield

    def given_for_nothing(self, root: nn.Module) -> Iterator[GivenForNothing]:
        """Of those functions the arguments that are given and come to nothing; `root` is the module that ran."""
        for code, seen in self._seen.items():
            is_asked = seen.given and not seen.is_mapped
            source = attempt(lambda code=code: inspect.getsource(code)) if is_asked else None
            tree = attempt(lambda source=source: ast.parse(textwrap.dedent(str(source))).body[0])
            if not isinstance(source, str) or not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for name, statements in converted_alone(tree, seen.known).items():
                if name not in seen.given or _is_asked_for(seen.holder, code, name):
                    continue
                if not is_used_in_its_place(code, name, seen.holder, root):
                    other = next(iter(read_in_its_place(tree, name)), None)
                    line = code.co_firstlineno - 1 + (statements[0].lineno if other is None else other[1])
                    kind = type(seen.holder).__name__ if isinstance(seen.holder, nn.Module) else ""
                    place = Place(module_class=kind, file=code.co_filename, line=line, function=code.co_name)
                    instead = "" if other is None else f"; line {line} reads {other[0]} a second time"
                    yield GivenForNothing(name, place, instead, source)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._assigned:
            self._assigned[code] = _assigned(code) if self._frames.rank_of(code) == _OWN else ()
        if self._assigned[code]:
            attempt(lambda: self._note(frame, self._assigned[code]))

    def _note(self, frame: FrameType, names: tuple[str, ...]) -> None:
        code, held = frame.f_code, frame.f_locals
        first = held.get(code.co_varnames[0])
        seen = self._seen.setdefault(code, _Seen(frame.f_globals, None if isinstance(first, Tensor) else first))
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        tensors = [held[name] for name in arguments if isinstance(held.get(name), Tensor)]
        seen.is_mapped |= any(is_transformed(each) for each in tensors)
        seen.given |= {name for name in names if name not in seen.given and _is_value(held.get(name))}


def _assigned(code: CodeType) -> tuple[str, ...]:
    """The arguments that a function assigns to."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    stored = {
        name
        for each in dis.get_instructions(code)
        if each.opname.startswith("STORE_") or each.opname == "STORE_DEREF"
        for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
    }
    return tuple(name for name in names if name in stored)


def _is_value(value: Any) -> bool:
    """Whether it is a tensor or a number: what is a switch, a word or None may be there for others."""
    return isinstance(value, (Tensor, float)) or (isinstance(value, int) and not isinstance(value, bool))


def _is_asked_for(holder: Any, code: CodeType, name: str) -> bool:
    """Whether a class that its own is derived from has a method of that name, which takes the argument too."""
    kinds = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
    methods: list[Callable[..., Any]] = [vars(kind)[code.co_name] for kind in kinds if code.co_name in vars(kind)]
    codes = [getattr(inspect.unwrap(getattr(each, "__func__", each)), "__code__", None) for each in methods]
    return code in codes and any(
        each is not None and name in each.co_varnames for each in codes[codes.index(code) + 1 :]
    )
