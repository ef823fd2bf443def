"""Where a thread stands that does not come back: its module, its line, and the loop it goes round in.

Its local variables are read in that thread alone, by a signal's handler: CPython may crash where another thread reads
them while the thread leaves the function. A thread that runs no Python, or is not the main one, is seen by its lines.
"""

import gc
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, TypeVar

from torch import nn
from torch.autograd.function import FunctionCtx

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, is_before_the_fork
from nsa_doctor.core.internal import frames_of_threads
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.loops import loop_around
from nsa_doctor.probes.hooks.phase import Phases
from nsa_doctor.probes.hooks.places import module_code

_LOOKS = 25
_LOOK_SECONDS = 0.02
_LONGEST_SECONDS = 2.0
_ANSWER_SECONDS = 2.0  # for a thread to come to its next line of Python, on a busy machine too
_MOST_ROOTS = 8
_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # that nobody else uses
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A place in the subject; `phase` is of a pass, if one is on, and `loop` the first and last line of a loop.

    `is_exact` says that the module is the very one whose method runs, not merely one of its class.
    """

    place: Place = field(default_factory=Place)
    phase: str = ""
    loop: tuple[int, int] | None = None
    is_exact: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class _Look:
    """One frame as it was at one moment: its line, and what differs when it has gone on since and come back."""

    frame: FrameType
    line: int
    state: tuple[int, ...]
    held: tuple[int, ...] | None  # None where it was not looked at, as from another thread


class StackSampler:
    """Says where a thread is, from another one: by its frames, so that nothing has to be followed while all is well.

    The thread goes on meanwhile: what it changes under a look costs that look alone.
    """

    def __init__(self, frames: FrameFilter | None = None, thread: int | None = None) -> None:
        self.frames = frames or FrameFilter()
        self._thread = threading.get_ident() if thread is None else thread
        self._roots: tuple[_Root, ...] = ()  # replaced, never changed: another thread may be reading it
        self._contexts: dict[int, Place] = {}
        self._wanted: Callable[[FrameType | None], None] = lambda frame: None
        self._is_asked = False

    def listen(self) -> None:
        """Have this thread, the main one, answer for itself from now on whenever another looks."""
        signal.signal(_SIGNAL, self._answer)

    def know(self, root: nn.Module) -> None:
        """Learn of a module that was built, for the names of its parts."""
        self._roots = (_Root(weakref.ref(root)), *self._roots)[:_MOST_ROOTS]

    def remember(self, context: FunctionCtx, frame: FrameType) -> None:
        """Note in whose forward an autograd function ran, since no module is on the stack of its backward."""
        place, is_exact = self.owner(frame)
        if is_exact:
            self._contexts[id(context)] = place

    def sight(self) -> Sighting:
        """Look for half a second at where the thread is; other threads count when it is not in the subject's code."""
        stacks: dict[int, list[list[_Look]]] = {}
        frames: dict[int, FrameType] = {}
        enough = time.monotonic() + _LONGEST_SECONDS
        for number in range(_LOOKS):
            if number > 1 and time.monotonic() > enough:  # a busy machine
                break
            frames = current_frames()
            own = self._in_its_thread(lambda frame: self._stack(frame, True))
            for thread, frame in frames.items():
                is_seen_inside = own is not None and thread == self._thread
                stack = own if is_seen_inside else attempt(lambda frame=frame: self._stack(frame, False))
                stacks.setdefault(thread, []).extend([] if isinstance(stack, Caught | None) else [stack])
            time.sleep(_LOOK_SECONDS)
        phase = Phases.under_way.get(self._thread, "")
        others = [thread for thread in stacks if thread not in (self._thread, threading.get_ident())]
        for thread in (self._thread, *others):
            seen = attempt(lambda thread=thread: self._seen(stacks.get(thread, []), thread))
            if isinstance(seen, Sighting):
                return replace(seen, phase=phase)
        found = self._in_its_thread(self.owner)  # it may run compiled, without a line
        place, is_exact = found or (Place(), False)
        return Sighting(place=place, phase=phase, is_exact=is_exact)

    def _in_its_thread(
        self, call: Callable[[FrameType | None], _Answer], seconds: float = _LOOK_SECONDS
    ) -> _Answer | None:
        """What a call answers in the thread that is looked at, given its frame; None where it gives no answer.

        It has so many seconds, and more after a signal. A thread in no Python is not disturbed again, which could end
        what it waits for: the signal that it has yet to answer will do.
        """
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()  # whose `put` may interrupt itself
        if signal.getsignal(_SIGNAL) != self._answer:  # it does not listen, or the subject has a handler of its own
            return None
        self._wanted = lambda frame: answers.put(attempt(lambda: call(frame)))
        if not self._is_asked:
            self._is_asked, seconds = True, _ANSWER_SECONDS
            signal.pthread_kill(self._thread, _SIGNAL)
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            return None
        return None if isinstance(answer, Caught) else answer

    def _answer(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = False
        wanted, self._wanted = self._wanted, lambda frame: None
        attempt(lambda: wanted(frame))

    def owner(self, frame: FrameType | None) -> tuple[Place, bool]:
        """The module in whose method or backward a frame is, without a line, and whether it is that very one."""
        roots = self._candidates(frame)
        unnamed: nn.Module | None = None
        for each in outwards(frame):
            module = module_of(each)
            if module is not None:
                path = next((path for root in roots if (path := root.path_of(module)) is not None), None)
                if path is not None:
                    return Place(module=path, module_class=type(module).__name__), True
                if unnamed is None:
                    unnamed = module
                    if each.f_code.co_name == "__init__":  # its parts have no names before it is done
                        break
            context = context_of(each)
            if context is not None and (known := self._contexts.get(id(context))) is not None:
                return known, True
        return Place(module_class="" if unnamed is None else type(unnamed).__name__), unnamed is not None

    def describe(self, frame: FrameType, line: int) -> tuple[Place, bool]:
        """The place of a frame of this thread; where no module's method runs, the one whose source holds the line."""
        owner, is_exact = self.owner(frame)
        return (_place(frame, line, owner), True) if is_exact else self._by_its_line(frame, line, owner)

    def _by_its_line(self, frame: FrameType, line: int, owner: Place) -> tuple[Place, bool]:
        return self._by_line(_place(frame, line, owner)), False

    def _seen(self, stacks: Sequence[Sequence[_Look]], thread: int) -> Sighting | None:
        """What the looks at one thread have in common."""
        if not stacks:
            return None
        present = [{id(look.frame) for look in stack} for stack in stacks]
        common = [look for look in stacks[-1] if all(id(look.frame) in ids for ids in present)]
        deepest = self._deepest(common) or self._deepest(stacks[-1])
        if deepest is None:
            return None
        same = [look for stack in stacks for look in stack if look.frame is deepest.frame]
        moves = len({look.state for look in same}) > 1 or len({look.held for look in same} - {None}) > 1
        loop = loop_around(deepest.frame.f_code, {look.line for look in same}) if moves else None
        frame, line = deepest.frame, loop[0] if loop else deepest.line
        describe: Callable[[Any], tuple[Place, bool]] = lambda _: self.describe(frame, line)  # noqa: E731
        found = self._in_its_thread(describe, _ANSWER_SECONDS) if thread == self._thread else None
        place, is_exact = found or self._by_its_line(frame, line, Place())
        return Sighting(place=place, loop=loop, is_exact=is_exact)

    def _stack(self, frame: FrameType | None, reads_locals: bool) -> list[_Look]:
        looks: list[_Look] = []
        for each in outwards(frame):
            called = id(looks[-1].frame) if looks else 0
            is_read = reads_locals and self.frames.rank_of(each.f_code)
            held = tuple(map(id, list(each.f_locals.values()))) if is_read else None
            looks.append(_Look(each, each.f_lineno, (each.f_lasti, called), held))
        return looks

    def _deepest(self, innermost_first: Sequence[_Look]) -> _Look | None:
        best: _Look | None = None
        best_rank = 0
        for look in innermost_first:
            rank = self.frames.rank_of(look.frame.f_code)
            if rank > best_rank:
                best, best_rank = look, rank
        return best

    def _candidates(self, frame: FrameType | None) -> list["_Root"]:
        """Modules that were built, the latest first, and the outermost one that runs."""
        running = [module for outer in outwards(frame) if (module := module_of(outer)) is not None]
        return [*self._roots, *(_Root(weakref.ref(module)) for module in running[-1:])]

    def _by_line(self, place: Place) -> Place:
        for root in [root for known in self._roots if (root := known.module()) is not None]:
            ranges = attempt(lambda root=root: module_code(root))
            for file, first, last, path, name in [] if isinstance(ranges, Caught) else ranges:
                if file == place.file and first <= place.line <= last:
                    return replace(place, module=path, module_class=name)
        return place


class _Root:
    """A module that was built, and the names of its parts once somebody asks."""

    def __init__(self, module: weakref.ref[nn.Module]) -> None:
        self.module = module
        self._paths: dict[int, str] = {}

    def path_of(self, part: nn.Module) -> str | None:
        """The dotted path of one of its parts; None of what is none, and while it is gone or not yet whole."""
        root = self.module()
        if root is None:
            return None
        if id(part) not in self._paths:
            self._paths = _tried(lambda: {id(module): path for path, module in root.named_modules()}, {})
        return self._paths.get(id(part))


def module_of(frame: FrameType) -> nn.Module | None:
    """The module whose method this frame runs, or a function defined in one of its methods."""
    code = frame.f_code
    if code.co_varnames[:1] != ("self",) and "self" not in code.co_freevars:
        return None
    owner = frame.f_locals.get("self")
    return owner if issubclass(type(owner), nn.Module) else None  # by no `__class__` of the subject's making


def context_of(frame: FrameType) -> FunctionCtx | None:
    """The context, when this frame runs an autograd function's forward, its setting up or its backward."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if issubclass(type(first), FunctionCtx) else None


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, up to where the process was forked."""
    while frame is not None and not is_before_the_fork(frame.f_code.co_filename):
        yield frame
        frame = frame.f_back


def _place(frame: FrameType, line: int, owner: Place) -> Place:
    return replace(owner, file=frame.f_code.co_filename, line=line, function=frame.f_code.co_name)


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of every thread; no garbage is collected meanwhile, which could let another thread run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return frames_of_threads()
    finally:
        if was_enabled:
            gc.enable()


def _tried(call: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """The call's answer, or the other where it raises."""
    answer = attempt(call)
    return otherwise if isinstance(answer, Caught) else answer
