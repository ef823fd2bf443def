"""Exceptions that a subject's own code raises, or lets through, and catches: where, of which type, and by what."""

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import escaped

_CONTROL = (StopIteration, StopAsyncIteration, GeneratorExit)  # how loops and generators end
_LONGEST_MESSAGE = 160
_SLIPS = (TypeError, AttributeError, NameError, AssertionError, LookupError)
_QUESTIONS = (LookupError, AttributeError, ImportError)
_MISFIT = re.compile(r"size|shape|dimension|broadcast|expanded|singleton", re.IGNORECASE)
_EVERYTHING = (Exception, BaseException)
Site = tuple[str, int, str, int, str]
_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, kw_only=True)
class Swallowed:
    """One exception that was caught: `raised` is the deepest line of the subject's it passed, `caught` the handler's.

    `catches` is the handler as it is written; `is_broad` where it catches every exception there is.
    """

    raised: Place
    caught: Place
    kind: type[BaseException]
    message: str
    catches: str
    is_broad: bool

    @property
    def site(self) -> Site:
        """The same each time the same line fails in the same way."""
        return self.raised.file, self.raised.line, self.caught.file, self.caught.line, self.kind.__name__

    def is_slip(self, packages: Sequence[str]) -> bool:
        """Whether it is of a kind that nobody means to raise, caught together with every other kind."""
        if issubclass(self.kind, ImportError):
            return self.is_broad and any(
                f"'{name}." in self.message or f"'{name}'" in self.message for name in packages
            )
        is_misfit = issubclass(self.kind, RuntimeError) and _MISFIT.search(self.message) is not None
        return self.is_broad and (issubclass(self.kind, _SLIPS) or is_misfit)

    @property
    def is_a_question(self) -> bool:
        """Whether a narrow clause asks in this way whether something is there, as Python code does."""
        return not self.is_broad and (issubclass(self.kind, _QUESTIONS) or self.kind.__module__ != "builtins")


@dataclass(frozen=True)
class _Handler:
    """What may catch on some lines of a function: an `except` clause, or `with suppress(...)`."""

    line: int
    last: int
    words: str
    types: tuple[ast.expr, ...] | None  # None catches everything
    is_clause: bool

    def catches(self, error: BaseException, frame: FrameType) -> bool:
        if self.types is None:
            return True
        return any(isinstance(error, kind) for node in self.types for kind in _resolved(node, frame))

    def is_broad(self, frame: FrameType) -> bool:
        return self.types is None or any(kind in _EVERYTHING for node in self.types for kind in _resolved(node, frame))


@dataclass(frozen=True)
class _Guarded:
    """Lines of a function, and what catches there, in the order it is asked."""

    first: int
    last: int
    handlers: tuple[_Handler, ...]


@contextmanager
def swallowed_exceptions(
    is_own: Callable[[CodeType], bool], place_of: Callable[[FrameType], Place | None]
) -> Iterator[list[Swallowed]]:
    """What this thread's own code catches in this region, without what it raises again; ways to end a loop left out."""
    follower = _Follower(is_own, place_of)
    before = sys.gettrace()
    sys.settrace(follower.called)
    try:
        yield follower.found
    finally:
        sys.settrace(before)


class _Follower:
    """Python's trace function: it receives every exception that passes one of the subject's own frames."""

    def __init__(self, is_own: Callable[[CodeType], bool], place_of: Callable[[FrameType], Place | None]) -> None:
        self.found: list[Swallowed] = []
        self._is_own, self._place_of = is_own, place_of
        self._known: dict[CodeType, bool] = {}
        self._passing: tuple[BaseException, Place] | None = None
        self._open: dict[FrameType, list[tuple[_Handler, Swallowed]]] = {}

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What to tell of a new frame: exceptions alone, and of the subject's own code alone."""
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._is_own(code)
        if not self._known[code]:
            return None
        frame.f_trace_lines = False
        return self._follow

    def _follow(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            attempt(lambda: self._pass(frame, arg[1]))  # what a tracer raises would come out of the subject
        elif event == "return":
            self._open.pop(frame, None)
        return self._follow

    def _pass(self, frame: FrameType, error: Any) -> None:
        if not isinstance(error, BaseException) or isinstance(error, _CONTROL):
            return
        if self._passing is None or self._passing[0] is not error:
            place = self._place_of(frame)
            if place is None:
                return
            self._passing = (error, place)
        handler = _handler_at(frame, error)
        if handler is None:
            self._raised_again(frame)
            return
        caught = self._place_of(frame)
        if caught is not None:
            swallowed = _swallowed(error, self._passing[1], caught, handler, frame)
            self.found.append(swallowed)
            self._open.setdefault(frame, []).append((handler, swallowed))
        self._passing = None

    def _raised_again(self, frame: FrameType) -> None:
        """A handler that this exception leaves has swallowed nothing: it has put it into other words."""
        for handler, swallowed in self._open.get(frame, ()):
            if handler.is_clause and handler.line <= frame.f_lineno <= handler.last and swallowed in self.found:
                self.found.remove(swallowed)


def _swallowed(error: BaseException, raised: Place, caught: Place, handler: _Handler, frame: FrameType) -> Swallowed:
    sentence = Caught(error).sentence.removeprefix(f"{type(error).__name__}: ")
    return Swallowed(
        raised=raised,
        caught=replace(caught, line=handler.line),
        kind=type(error),
        message=escaped(sentence)[:_LONGEST_MESSAGE],
        catches=handler.words,
        is_broad=handler.is_broad(frame),
    )


def _handler_at(frame: FrameType, error: BaseException) -> _Handler | None:
    """What in this frame catches the exception, asked from the inside outwards."""
    line = frame.f_lineno
    around = [each for each in _guarded(frame.f_code.co_filename, frame.f_code.co_firstlineno) if line in _lines(each)]
    for guarded in sorted(around, key=lambda each: each.last - each.first):
        for handler in guarded.handlers:
            if handler.catches(error, frame):
                return handler
    return None


def _lines(guarded: _Guarded) -> range:
    return range(guarded.first, guarded.last + 1)


@cache
def _guarded(file: str, first_line: int) -> tuple[_Guarded, ...]:
    """What catches in the function that starts at this line."""
    tree = attempt(lambda: ast.parse(Path(file).read_text(encoding="utf-8")))
    if isinstance(tree, Caught):
        return ()
    return tuple(_of_scope(_scope(tree, first_line)))


def _scope(tree: ast.Module, first_line: int) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.lineno, *(each.lineno for each in node.decorator_list))
            if min(lines) == first_line:
                return node
    return tree


def _of_scope(scope: ast.AST) -> Iterator[_Guarded]:
    for node in _inside(scope):
        if isinstance(node, ast.Try):
            handlers = tuple(_clause(handler) for handler in node.handlers)
            yield _Guarded(node.body[0].lineno, _end(node.body[-1]), handlers)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            suppressing = tuple(each for item in node.items if (each := _suppressing(item)) is not None)
            if suppressing:
                yield _Guarded(node.body[0].lineno, _end(node.body[-1]), suppressing)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs in the scope's own frame."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, _OTHER_SCOPES):
            yield child
            yield from _inside(child)


def _clause(handler: ast.ExceptHandler) -> _Handler:
    words = "except" if handler.type is None else f"except {ast.unparse(handler.type)}"
    types = None if handler.type is None else _each(handler.type)
    return _Handler(handler.lineno, _end(handler.body[-1]), words, types, is_clause=True)


def _suppressing(item: ast.withitem) -> _Handler | None:
    call = item.context_expr
    if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != suppress.__name__:
        return None
    return _Handler(call.lineno, call.lineno, ast.unparse(call), tuple(call.args), is_clause=False)


def _each(node: ast.expr) -> tuple[ast.expr, ...]:
    return tuple(node.elts) if isinstance(node, ast.Tuple) else (node,)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _resolved(node: ast.expr, frame: FrameType) -> tuple[type[BaseException], ...]:
    """The exception classes that an expression of names and dots stands for; none where it is anything else."""
    value = _looked_up(node, frame)
    listed = value if isinstance(value, tuple) else (value,)
    return tuple(each for each in listed if isinstance(each, type) and issubclass(each, BaseException))


def _looked_up(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if node.id in names:
                return names[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_looked_up(node.value, frame), node.attr, None)
    return None
