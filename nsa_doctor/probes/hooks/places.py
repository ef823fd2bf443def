"""Which module and which line of the subject's source is running."""

import inspect
import linecache
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import own_file
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.constructor_lines import line_that_gives
from nsa_doctor.probes.internal import part_at

# What lies beyond these called the doctor, not the subject.
_CALLERS = frozenset({own_file("probes", "model", "perform.py"), own_file("probes", "numerics", "steptrace.py")})
_OWN = 3  # the rank of a frame of the subject's own code


class Places:
    """Follows calls of modules while `watching`, and says where the code now running stands."""

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._ranks: dict[CodeType, int] = {}
        self._libraries: dict[CodeType, bool] = {}
        self._paths: dict[int, str] = {}
        self._calls: list[nn.Module] = []
        self._code: list[tuple[str, int, int, str, str]] = []

    def know(self, root: nn.Module) -> None:
        """Learn the names of a subject's modules."""
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._code = module_code(root)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow every module's forward, until the region ends."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._calls.clear()

    def here(self) -> tuple[Place, bool]:
        """Where the caller stands, and whether a line of the subject's own code was found (not torch's, not none)."""
        frame, rank, library = self._subject_frame(frame_above(1))
        if frame is None:
            return self._describe(self._called(), None), False
        line = Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)
        place = self._describe(self._deeper(self._called(), _self_of(frame)), line)
        return (replace(place, library=library) if library else place), rank > 1

    def instruction(self) -> tuple[str, int]:
        """Which call of the subject's own code this is: its file, and where in the code of it; a line may hold several.

        Empty where none of its code is found.
        """
        frame, _, _ = self._subject_frame(frame_above(1))
        return ("", 0) if frame is None else (f"{frame.f_code.co_filename}:{frame.f_lineno}", frame.f_lasti)

    def source(self) -> str:
        """What the subject's own code is computing here, as it is written; empty where that is not known."""
        frame, rank, _ = self._subject_frame(frame_above(1))
        if frame is None or rank < _OWN or frame.f_lasti < 0:
            return ""
        line, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
        if line is None or last is None or begin is None or end is None:
            return ""
        lines = [linecache.getline(frame.f_code.co_filename, each).encode() for each in range(line, last + 1)]
        lines[-1] = lines[-1][:end]
        return b"".join((lines[0][begin:], *lines[1:])).decode(errors="replace")

    def calling(self, of_methods: bool = False) -> Place | None:
        """Where the function that the caller stands in was called, if it is the subject's and no module's method.

        And where a method was `of_methods` are asked for: of `forward` the call stands in torch's own code.
        """
        frame, rank, _ = self._subject_frame(frame_above(1))
        if frame is None or rank < _OWN:
            return None
        if _self_of(frame) is not None and (not of_methods or frame.f_code.co_name == "forward"):
            return None
        outer, rank, _ = self._subject_frame(frame.f_back)
        if outer is None or rank < _OWN:
            return None
        line = Line(file=outer.f_code.co_filename, line=outer.f_lineno, function=outer.f_code.co_name)
        return self._describe(self._called(), line)

    def of_number(self, number: float) -> Place:
        """Where a number that the caller uses comes from: the line that hands it in, or that made the attribute."""
        frame, rank, _ = self._subject_frame(frame_above(1))
        while frame is not None and rank >= _OWN and _is_argument(frame, number):
            outer, rank, _ = self._subject_frame(frame.f_back)
            frame = outer if outer is not None and rank >= _OWN else frame
            rank = rank if frame is outer else 0
        if frame is None:
            return self.here()[0]
        owner = _self_of(frame)
        line = None if owner is None else _line_of_attribute(owner, frame, number)
        line = line or line_that_gives(frame, lambda value: _is_number(value, number), lambda: self._own_files(frame))
        line = line or Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)
        return self._describe(self._deeper(self._called(), owner), line)

    def _own_files(self, frame: FrameType | None) -> set[str]:
        """The files of the subject's own functions that are under way there."""
        files: set[str] = set()
        while frame is not None:
            files |= {frame.f_code.co_filename} if self._frames.rank_of(frame.f_code) == _OWN else set()
            frame = frame.f_back
        return files

    def of_method(self, module: nn.Module) -> Place | None:
        """The line of a method of that module, the nearest to the caller, which is under way; None where none is."""
        frame, rank, _ = self._subject_frame(frame_above(1))
        while frame is not None and rank >= _OWN:
            if _self_of(frame) is module:
                line = Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)
                return self._describe(module, line)
            frame, rank, _ = self._subject_frame(frame.f_back)
        return None

    def of_frame(self, frame: FrameType) -> Place | None:
        """Where in the subject's own code a frame of this thread stands; None outside of it."""
        found, _, library = self._subject_frame(frame)
        if found is None:
            return None
        owner: nn.Module | None = None
        outer: FrameType | None = found
        while owner is None and outer is not None:
            module = _self_of(outer)
            owner = module if module is not None and id(module) in self._paths else None
            outer = outer.f_back
        line = Line(file=found.f_code.co_filename, line=found.f_lineno, function=found.f_code.co_name)
        return replace(self._describe(owner, line), library=library)

    def of_watched_frame(self, frame: FrameType) -> Place | None:
        """Where in the subject's own code a frame of the thread stands that is watched; None outside of it.

        For another thread, which may not read its local variables: CPython may crash when it does.
        """
        found, _, library = self._subject_frame(frame)
        if found is None:
            return None
        line = Line(file=found.f_code.co_filename, line=found.f_lineno, function=found.f_code.co_name)
        return replace(self._describe(self._called(), line), library=library)

    def of_traceback(self, traceback: TracebackType | None) -> Place:
        """Where in the subject an exception came from."""
        line, caught = self._frames.of_traceback(traceback), traceback
        owner: nn.Module | None = None
        while traceback is not None:
            module = _self_of(traceback.tb_frame)
            owner = owner if module is None or id(module) not in self._paths else module
            traceback = traceback.tb_next
        return replace(self._describe(owner, line), library=self._frames.library_of_traceback(caught))

    def caller_of_traceback(self, traceback: TracebackType | None) -> Place:
        """The line of the subject's own that called the function which raised; none of what calls the subject."""
        own: list[TracebackType] = []
        while traceback is not None:
            own += [traceback] if self._frames.rank_of(traceback.tb_frame.f_code) == _OWN else []
            traceback = traceback.tb_next
        if len(own) < 2 or (len(own) == 2 and _self_of(own[0].tb_frame) is None):
            return Place()
        code = own[-2].tb_frame.f_code
        return self._describe(None, Line(file=code.co_filename, line=own[-2].tb_lineno, function=code.co_name))

    def owner(self, place: Place) -> Place:
        """The place with the module whose source holds its line: for functions that run where no module is called."""
        for file, first, last, path, name in self._code:
            if file == place.file and first <= place.line <= last:
                return replace(place, module=path, module_class=name)
        return place

    def of_path(self, path: str, root: nn.Module) -> Place:
        """The module of that dotted path, without a line."""
        return Place(module=path, module_class=type(part_at(root, path)).__name__)

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._calls.append(module)

    def _leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        while self._calls and self._calls.pop() is not module:
            pass

    def _called(self) -> nn.Module | None:
        """The innermost module now running that has a name; one made on the fly counts as its caller."""
        calls = tuple(self._calls)  # another thread may be looking
        named = (module for module in reversed(calls) if id(module) in self._paths)
        return next(named, calls[-1] if calls else None)

    def _subject_frame(self, frame: FrameType | None) -> tuple[FrameType | None, int, str]:
        """The frame to name, its rank, and the line of a library that it called and that runs now."""
        best: FrameType | None = None
        best_rank, library = 0, ""
        while frame is not None:
            code = frame.f_code
            if code.co_filename in _CALLERS:
                break
            rank = self._ranks.get(code)
            if rank is None:
                rank = self._ranks[code] = self._frames.rank_of(code)
                self._libraries[code] = self._frames.is_library(code.co_filename)
            if not library and self._libraries[code]:
                library = f"{code.co_filename}:{frame.f_lineno}"
            if rank > best_rank:
                best, best_rank = frame, rank
                if rank == 3:
                    break
            frame = frame.f_back
        return best, best_rank, library if best_rank == 3 else ""

    def _deeper(self, called: nn.Module | None, owner: nn.Module | None) -> nn.Module | None:
        """`owner` when it lies inside `called`: its forward was run without calling it, so no hook saw it."""
        if called is None or owner is None or id(owner) not in self._paths:
            return owner if called is None else called
        outer, inner = self._paths.get(id(called), ""), self._paths[id(owner)]
        return owner if inner != outer and (not outer or inner.startswith(f"{outer}.")) else called

    def _describe(self, module: nn.Module | None, line: Line | None) -> Place:
        path = "" if module is None else self._paths.get(id(module), "")
        name = "" if module is None else type(module).__name__
        if line is None:
            return Place(module=path, module_class=name)
        return Place(module=path, module_class=name, file=line.file, line=line.line, function=line.function)


def _is_argument(frame: FrameType, number: float) -> bool:
    """Whether a frame was handed the number, or its inverse, by an argument."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return any(_is_number(frame.f_locals.get(name), number) for name in names)


def _line_of_attribute(owner: nn.Module, frame: FrameType, number: float) -> Line | None:
    """The line that makes the module's attribute which is the number and which the frame's line reads."""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    held = [name for name, value in vars(owner).items() if _is_number(value, number)]
    names = (name for name in held if re.search(rf"\bself\.{re.escape(name)}\b", text))
    return next((line for name in names if (line := line_that_makes(owner, name)) is not None), None)


def _is_number(value: object, number: float) -> bool:
    """Whether it is that number or its inverse, and one that says something: not 1."""
    if not isinstance(value, float) or value in (0.0, 1.0):
        return False
    return math.isclose(value, number) or math.isclose(1 / value, number)


def module_code(root: nn.Module) -> list[tuple[str, int, int, str, str]]:
    """(file, first line, last line, path, class) of every method of every class of module.

    The path is empty where several modules are of that class: a line alone does not tell which.
    """
    seen: dict[type, str] = {}
    for path, module in root.named_modules():
        seen[type(module)] = "" if type(module) in seen else path
    found = []
    for kind, path in seen.items():
        for method in vars(kind).values():
            function = inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None
            code = getattr(function, "__code__", None)
            if code is not None and not kind.__module__.startswith("torch."):
                last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
                found.append((code.co_filename, code.co_firstlineno, last, path, kind.__name__))
    return found


def definition_place(root: nn.Module) -> Place:
    """The subject itself, at the line its forward is defined on; its class where that has none."""
    kind = type(root)
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    name = kind.__name__
    if kind.forward is nn.Module.forward:
        read = attempt(lambda: (inspect.getfile(kind), inspect.getsourcelines(kind)[1]))
        file, line = ("", 0) if isinstance(read, Caught) else read
        return Place(module_class=name, file=file, line=line)
    if code is None:
        return Place(module_class=name)
    return Place(module_class=name, file=code.co_filename, line=code.co_firstlineno, function="forward")


def callable_place(call: Callable[..., Any] | None, root: nn.Module) -> Place:
    """The subject itself, at the line where something it is called through is defined; its forward's line else."""
    function = inspect.unwrap(call) if call is not None else None
    function = getattr(function, "func", function)  # of a functools.partial
    function = getattr(function, "__func__", function)
    if callable(function) and not hasattr(function, "__code__"):  # an object with a method of that name
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    if code is None:
        return definition_place(root)
    name = type(root).__name__
    return Place(module_class=name, file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


def in_subject(place: Place, root: nn.Module) -> Place:
    """The place, in the subject itself where no module of its own is known, as in the code of a loop around it."""
    return place if place.module_class else replace(place, module_class=type(root).__name__)


def parameter_place(place: Place, root: nn.Module, name: str) -> Place:
    """The place, in the module that holds the parameter of that name; as it is where there is no such parameter."""
    if name not in dict(root.named_parameters()):
        return place
    path = name.rpartition(".")[0]
    return replace(place, module=path, module_class=type(part_at(root, path)).__name__)


def _self_of(frame: FrameType) -> nn.Module | None:
    """The module whose method this frame runs."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, nn.Module) else None
