"""A file of stacks: what stood still for how long, and the line at fault of the thread that held it up."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.record import Dump
from nsa_doctor.core.frames import Line

_WHY = re.compile(r"(?P<stage>[^\n]{1,200}?) of step (?P<step>\d{1,15}) has taken (?P<seconds>[\d.]{1,20}) s")
_NAME = re.compile(r"^0x(?P<ident>[0-9a-f]{1,16}) is (?P<name>.{1,200})$", re.MULTILINE)
_THREAD = re.compile(
    r"^(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+|\d+)(?: \[(?P<label>[^\]\n]*)\])?"
    r"(?: \(most recent call first\)| \((?P<state>[\w ]+)\)(?:: \"(?P<quoted>[^\"\n]*)\")?)",
    re.MULTILINE,
)
_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}) in (?P<function>.+)$'
    r"|^    (?P<called>\S+) \((?P<path>[^\n:()]+):(?P<number>\d{1,9})\)$",
    re.MULTILINE,
)
_NEVER_AT_FAULT = re.compile(
    r"^<|[/\\]torchinductor_"
    r"|[/\\](?:site|dist)-packages[/\\](?:torch|numpy|jaxtyping|beartype|typeguard|einops|pluggy|_pytest)[/\\]"
    r"|[/\\]python3[\d.]*[/\\](?!.*(?:site|dist)-packages)"
    r"|^(?:.*[/\\]lib[/\\])?(?:threading|queue|selectors|socket|ssl|subprocess)\.py$",
    re.IGNORECASE,
)
_LOADERS = re.compile(r"data|load|feed|worker|prefetch|fetch|reader|queue", re.IGNORECASE)
_WAITS = re.compile(r"batch|loader|data|fetch", re.IGNORECASE)
_WATCHERS = re.compile(r"watchdog|signals|heartbeat", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Stall:
    """One stall as a dump tells it; no line where none of the stacks is to blame."""

    stage: str = ""
    step: int | None = None
    seconds: float | None = None
    line: Line | None = None

    @property
    def is_of_loader(self) -> bool:
        """Whether a batch was waited for."""
        return is_wait_for_data(self.stage)


@dataclass(frozen=True)
class _Thread:
    name: str
    is_main: bool
    lines: tuple[Line, ...]


def is_wait_for_data(stage: str) -> bool:
    """Whether a stage is one in which a batch is waited for."""
    return bool(_WAITS.search(stage))


def stall_in(dump: Dump) -> Stall:
    """What the file says; of a wait for data the loader's thread is to blame, else the main thread."""
    why = _WHY.search(dump.text[:2000])
    stage = why["stage"].strip() if why else ""
    threads = list(_threads(dump.text))
    return Stall(
        stage=stage,
        step=int(why["step"]) if why else None,
        seconds=_seconds(why["seconds"]) if why else None,
        line=_at_fault(threads, is_wait_for_data(stage)),
    )


def _at_fault(threads: Sequence[_Thread], is_of_loader: bool) -> Line | None:
    main = [each for each in threads if each.is_main] or list(threads[-1:])
    loaders = [each for each in threads if each not in main and _LOADERS.search(each.name)]
    ordered = [*loaders, *main] if is_of_loader else [*main]
    return next((line for thread in ordered if (line := _deepest(thread)) is not None), None)


def _deepest(thread: _Thread) -> Line | None:
    """The innermost line that is neither Python's own nor torch's."""
    return next((line for line in thread.lines if not _NEVER_AT_FAULT.search(line.file)), None)


def _threads(text: str) -> Iterator[_Thread]:
    """Every thread but those that only watch; faulthandler writes the main thread last."""
    names = {found["ident"].lstrip("0"): found["name"] for found in _NAME.finditer(text)}
    heads = list(_THREAD.finditer(text))
    labels = [
        head["quoted"] or names.get(head["ident"].removeprefix("0x").lstrip("0")) or head["label"] for head in heads
    ]
    is_named = any(name == "MainThread" for name in labels)
    for index, (head, name) in enumerate(zip(heads, labels, strict=True)):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        lines = tuple(_lines(text[head.end() : end]))
        is_main = name == "MainThread" if is_named else index == len(heads) - 1
        if not _WATCHERS.search(name or ""):
            yield _Thread(name or "", is_main, lines)


def _lines(text: str) -> Iterator[Line]:
    for found in _FRAME.finditer(text):
        file, number = found["file"] or found["path"], found["line"] or found["number"]
        yield Line(file=file, line=int(number), function=found["function"] or found["called"])


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
