"""What is said of a child that gave no answer: how it ended, and where in the subject."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place, Trouble, TroubleKind
from nsa_doctor.isolation.failures import CrashReport, WorkerDiedError, WorkerHungError
from nsa_doctor.isolation.worker_process import WorkerProcess

_MOST_COMMANDS = 3
_OWN = 3  # rank of the subject's own code
_LEAST_PATIENCE = 5.0
_MARGIN = 4.0  # times the slowest call that came back
_MORE_ROWS = 32.0  # times those of the slowest pass, at most
_MOST_EXTENSION = 6.0  # times what is allowed

CodeRange = Sequence[Any]  # file, first line, last line, module path, class


@dataclass
class HangHistory:
    """What the supervisors of one run have learnt of their subject's hangs and deaths, for each other to know.

    `fatal_lengths` are not tried again, `slowest_seconds` is the longest a call took that did come back, `slowest_pass`
    the longest of a pass whose input was measured, and `modules` say in which module a line ended that by itself does
    not tell.
    """

    has_hung: bool = False
    slowest_seconds: float = 0.0
    slowest_pass: float = 0.0
    fatal_lengths: set[int] = field(default_factory=set)
    modules: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def patience(self, seconds: float) -> float:
        """The time a call may take where `seconds` are allowed: as much more as a slow module may need.

        Another call may have many more rows than the slowest pass so far. Once one has hung, more may, and a few times
        the slowest that did not is enough, but never less than a call on a busy machine may need.
        """
        extended = max(seconds, min(_MOST_EXTENSION * seconds, _MORE_ROWS * self.slowest_pass))
        if self.has_hung:
            return min(extended, max(_LEAST_PATIENCE, _MARGIN * self.slowest_seconds))
        return extended

    def knows(self, place: Place) -> Place:
        """The place, with its module where a line of the same function was seen in it."""
        known = self.modules.get((place.file, place.function))
        return place if known is None else replace(place, module=known[0], module_class=known[1])

    def learn(self, place: Place) -> None:
        """Keep the module of a place for others in the same function."""
        if place.file and place.module:
            self.modules[place.file, place.function] = (place.module, place.module_class)


def notes_of_left(children: Iterable[WorkerProcess]) -> tuple[str, ...]:
    """A note on processes that had left the sessions of these children, and ended with them; none without any."""
    left: Counter[str] = Counter()
    for child in children:
        left.update(child.ended.get("left", {}))
    if not left:
        return ()
    shown = ", ".join(f"{count} x {command}" for command, count in left.most_common(_MOST_COMMANDS))
    more = f" and {len(left) - _MOST_COMMANDS} more commands" if len(left) > _MOST_COMMANDS else ""
    noun = "processes" if left.total() > 1 else "process"
    return (f"ended {left.total()} {noun} that the subject had started outside its session: {shown}{more}",)


def trouble_of(
    failure: WorkerHungError | WorkerDiedError, packages: tuple[str, ...], code: Sequence[CodeRange]
) -> tuple[Trouble, bool]:
    """The failure as a trouble, and whether its module and line are known as exactly as can be."""
    crash = failure.crash
    place, is_exact = _place(crash, packages, code or crash.made.get("code", ()))
    message, kind = str(failure), _kind(failure)
    sighting = crash.sighting or {}
    if kind == "timeout" and (loop := sighting.get("loop")) and loop[0] < loop[1]:
        message += f", going round the loop of lines {loop[0]} to {loop[1]},"
    frames = FrameFilter(packages)
    if kind == "timeout" and (busy := frames.busy_in_dump(crash.dump)):
        message += _beside(busy)
        if frames.rank(place.file) < _OWN:  # what waits its turn is not at fault
            place, is_exact = Place(**asdict(busy[0])), False
    phase = str(sighting.get("phase", ""))
    traceback = crash.dump or ("" if kind == "timeout" else crash.last_words)
    return Trouble(kind=kind, message=message, phase=phase, place=place, traceback=traceback), is_exact


def _beside(busy: Sequence[Line]) -> str:
    """What other threads of the subject compute meanwhile, each of which takes its turns from all the others."""
    noun = "threads run" if len(busy) > 1 else "thread runs"
    return f" while {len(busy)} other {noun} ({busy[0].file}:{busy[0].line} in {busy[0].function}),"


def _kind(failure: WorkerHungError | WorkerDiedError) -> TroubleKind:
    return "timeout" if isinstance(failure, WorkerHungError) else "died"


def _place(crash: CrashReport, packages: tuple[str, ...], code: Sequence[CodeRange]) -> tuple[Place, bool]:
    """Where the child was seen, or last wrote that it was; failing that the deepest line its stacks hold."""
    seen = _place_of((crash.sighting or {}).get("place"))
    stack = FrameFilter(packages).of_dump(crash.dump)
    if seen.file or not stack:
        return seen, bool((crash.sighting or {}).get("is_exact"))
    place = Place(**asdict(stack[0]))
    for line in stack:
        for file, first, last, path, name in code:
            if file == line.file and first <= line.line <= last:
                return replace(place, module=path, module_class=name), bool(path)
    return place, False


def _place_of(place: Any) -> Place:
    """A place read from memory that the subject could have written to; none where there is none."""
    if not isinstance(place, Mapping):
        return Place()
    words = {name: str(place.get(name, "")) for name in ("module", "module_class", "file", "function")}
    line = place.get("line", 0)
    return Place(**words, line=line if isinstance(line, int) else 0)
