"""Detaches that are meant: the source says so, or what is cut is a statistic of the input alone."""

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.derivative import Agreement
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.built_module import BuiltModule

_DETACHING = ("detach", "detach_", "data")
_LENGTH = 12
_FEWER = 6  # times fewer values than the input has make a statistic
_SEEDS = (0, 1, 2)
_ABOVE = 3  # lines of comments
_SAID = re.compile(  # of truncation more is asked
    r"\b(carr(y|ies)|ha(s|ve)|gets?|receives?|with|takes?|flows?|of) no gradients?\b"
    r"|\bwithout (\w+ing )?(an?y? |the )?gradients?\b"
    r"|\bnothing\b[^.]{0,30}\b(carries|has|gets|receives) (a )?gradients?\b"
    r"|\bno gradients? (flows?|passes|reach(es)?|goes|comes|is|are)\b"
    r"|\bgradients? ((is|are) (cut|stopped|blocked|not)|stops?|ends?|(do|does) not (flow|pass|reach|go|come))\b"
    r"|\b(the last|last \w+) (alone |only )?ha(s|ve) (a )?gradients?\b|stop[-_ ]?grad|\bdetach(es|ed)?\b"
    r"|\b(not?|never|don't|without) (be )?back[- ]?prop\w*",
    re.IGNORECASE,
)
_OF_ANOTHER = re.compile(r"vanish|explod|checkpoint|clip|accumulat|memory.effic", re.IGNORECASE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class MeantCut:
    """A line that detaches, and why that is taken to be meant."""

    place: Place
    reason: str
    is_of_input: bool = False


def meant_cuts(built: BuiltModule) -> list[MeantCut]:
    """The lines of a pass that detach by name, of which the source or what they cut says that it is meant.

    A statistic of the input has few values and no parameter behind it, so that every parameter gets its whole gradient:
    the mean by which a series is normalised and restored (RevIN), the last value that a forecast begins with.
    """
    x = built.input(min(_LENGTH, built.subject.max_length))
    with unobserved():
        seen = attempt(lambda: _detaches(built, x))
    found = []
    for line, cut in seen.items() if isinstance(seen, dict) else ():
        if not cut.is_a_weight and _is_said(*line):
            found.append(MeantCut(cut.place, "its source says that it is cut there", not cut.has_weights))
        elif not cut.has_weights and _FEWER * cut.num_values <= x.numel():
            reason = "what is cut is a statistic of the input, behind which is no parameter"
            found.append(MeantCut(cut.place, reason, is_of_input=True))
    return found


def rest_agrees(make: Callable[[int], DerivativeProbe], length: int, cuts: Iterable[MeantCut]) -> bool:
    """Whether the gradient is the derivative where these lines detach nothing, or the same at every call.

    What is detached of the input may be used without gradients behind that, as coordinates are by a search.
    """
    cuts = list(cuts)
    of_input = [each.place for each in cuts if each.is_of_input]
    others = [each.place for each in cuts if not each.is_of_input]
    module = make(length).built.module
    for attached_there, held_there in (([*of_input, *others], []), (others, of_input)):
        with attached(attached_there), _held(module, held_there):
            agreement = attempt(lambda: make(length).agreement(_SEEDS))
        if not isinstance(agreement, Caught) and agreement is Agreement.AGREES:
            return True
    return False


@contextmanager
def attached(places: Iterable[Place]) -> Iterator[None]:
    """Detaching on these lines leaves the gradient as it is, until the region ends."""
    with _AtLines(places):
        yield


@contextmanager
def _held(module: nn.Module, places: Iterable[Place]) -> Iterator[None]:
    """Each call of the module detaches on these lines what its first call detached there, until the region ends."""
    holding = _Holding(places)
    handle = module.register_forward_pre_hook(lambda *_: holding.begin())
    try:
        with holding:
            yield
    finally:
        handle.remove()


@dataclass
class _Seen:
    """What one line detached in a pass: how many values at most, and whether they are or come of parameters."""

    place: Place
    num_values: int = 0
    has_weights: bool = False
    is_a_weight: bool = False


def _detaches(built: BuiltModule, x: Tensor) -> dict[tuple[str, int], _Seen]:
    """By file and line what is detached by name; x needs no gradient, so that what does has parameters behind it."""
    places = Places(FrameFilter(built.subject.packages))
    places.know(built.module)
    seen: dict[tuple[str, int], _Seen] = {}

    def note(tensor: Tensor) -> None:
        place, is_own = places.here()
        if is_own:
            each = seen.setdefault((place.file, place.line), _Seen(place))
            each.num_values = max(each.num_values, tensor.numel())
            each.has_weights |= tensor.requires_grad
            each.is_a_weight |= isinstance(tensor, nn.Parameter)

    with torch.enable_grad(), places.watching(), _Watching(note):
        built(x)
    return seen


def _named(func: Any) -> str:
    return str(resolve_name(func)).removesuffix(".__get__").rpartition(".")[2]


class _Watching(TorchFunctionMode):
    """Hands over each tensor that is about to be detached; the base class is torch's."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call behind the note of it."""
        if args and isinstance(args[0], Tensor) and _named(func) in _DETACHING[:2]:
            self._note(args[0])
        return func(*args, **(kwargs or {}))


class _AtLines(TorchFunctionMode):
    """What is detached on some lines goes through `instead`; the base class is torch's."""

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._lines = {(place.file, place.line) for place in places}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call, unless it detaches on one of the lines."""
        line = self._line() if args and isinstance(args[0], Tensor) and _named(func) in _DETACHING else None
        return func(*args, **(kwargs or {})) if line is None else self.instead(args[0], line)

    def instead(self, tensor: Tensor, line: tuple[str, int]) -> Tensor:
        """What the line is given for this tensor without its gradient: as it is, with it."""
        return tensor

    def _line(self) -> tuple[str, int] | None:
        """Which of the lines it is called on."""
        frame: FrameType | None = frame_above(2)
        while frame is not None:
            line = frame.f_code.co_filename, frame.f_lineno
            if line in self._lines:
                return line
            frame = frame.f_back
        return None


class _Holding(_AtLines):
    """What the lines detached in the first of several passes, in all of them."""

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__(places)
        self._kept: dict[tuple[tuple[str, int], int], Tensor] = {}
        self._number = 0

    def begin(self) -> None:
        """A pass begins."""
        self._number = 0

    def instead(self, tensor: Tensor, line: tuple[str, int]) -> Tensor:
        """What was detached there in the first pass."""
        key = line, self._number
        self._number += 1
        kept = self._kept.setdefault(key, tensor.detach().clone())
        return kept.clone() if kept.shape == tensor.shape else tensor.detach()


def _is_said(file: str, line: int) -> bool:
    """Whether a comment beside the line, or the docstring of the function or class around it, speaks of it."""
    texts = linecache.getlines(file)
    if not 0 < line <= len(texts):
        return False
    comments = [texts[line - 1].partition("#")[2]]
    for text in reversed(texts[max(0, line - 1 - _ABOVE) : line - 1]):
        if not text.lstrip().startswith("#"):
            break
        comments.append(text.partition("#")[2])
    sentences = (each for text in (*comments, *_docstrings(file, line)) for each in re.split(r"[.;]\s", text))
    return any(_SAID.search(each) and not _OF_ANOTHER.search(each) for each in sentences)


@lru_cache
def _definitions(file: str) -> list[tuple[int, int, str]]:
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(file))))
    if isinstance(tree, Caught):
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)]
    return [(node.lineno, node.end_lineno or node.lineno, ast.get_docstring(node) or "") for node in nodes]


def _docstrings(file: str, line: int) -> list[str]:
    return [text for first, last, text in _definitions(file) if first <= line <= last]
