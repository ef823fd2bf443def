"""What can be wrong with a checkpoint as a file: each kind has sentences of its own, and what a verdict makes of it."""

from typing import Literal

FaultKind = Literal[
    "missing",  # there is nothing of that name
    "denied",  # the system does not let us read it
    "irregular",  # a folder without a checkpoint, a pipe, a device
    "foreign",  # a file of another kind
    "empty",
    "truncated",  # the end is not there
    "incomplete",  # a file of several is not there
    "corrupt",  # contradicts itself
    "crc",  # the bytes are not those that were written
    "unsafe",  # asks a loader to run code, or is built to harm it
    "unsupported",  # sound as far as known, but in a form that is not read
    "limit",  # more than is read: time, memory, entries
]
USAGE: tuple[FaultKind, ...] = ("missing", "denied", "irregular", "foreign")
OPEN: tuple[FaultKind, ...] = ("unsupported", "limit")
_LONGEST_NAME, _KEPT_END = 120, 40


class FaultError(Exception):
    """A file cannot be read: its kind, and one sentence that says so and what to do."""

    def __init__(self, kind: FaultKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


def quoted(name: object) -> str:
    """A name from a file, short enough for a sentence and harmless on a terminal."""
    return repr(shortened(str(name) if isinstance(name, str) else type(name).__name__))


def shortened(text: str) -> str:
    """The text, of a long one its beginning and its end."""
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - _KEPT_END]}...{text[-_KEPT_END:]}"


def cut_short(name: str, what: str) -> FaultError:
    """The end is missing."""
    return FaultError("truncated", f"{name} is cut short and cannot be read: {what}; copy or save it again")


def corrupt(name: str, what: str) -> FaultError:
    """It contradicts itself."""
    return FaultError("corrupt", f"{name} is corrupt and cannot be read: {what}; restore it from a copy")


def unsafe(name: str, what: str, then: str = "do not load it, get it from a source you trust") -> FaultError:
    """It asks for code, or is built to harm."""
    return FaultError("unsafe", f"{name} is unsafe: {what}; {then}")


def incomplete(name: str, what: str) -> FaultError:
    """A part of it is not there."""
    return FaultError("incomplete", f"{name} is incomplete and cannot be read: {what}; copy all of it again")


def too_much(name: str, what: str, most: int) -> FaultError:
    """More than is read."""
    return FaultError("limit", f"{name} has {what}, and at most {most:,} are read")
