"""Patches of a host: what they are, and how a host with one of them is laid out in a folder."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HOSTS = Path(__file__).parent / "hosts"


@dataclass(frozen=True)
class Patch:
    """Text of one of the host's files, which occurs there once, and what stands in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """One planted bug of a kind.

    `line_text` are lines of the patched file, without indentation, to any of which a good diagnosis points. `needs`
    is the view from which it shows: "black box" (a factory of a module), or "adapter" (decoding, a training step).
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    line_text: tuple[str, ...]
    explanation: str
    needs: str

    @property
    def patches(self) -> tuple[Patch, ...]:
        return (Patch(self.file, self.old, self.new),)


@dataclass(frozen=True)
class Variant:
    """A change that looks like a bug and is none."""

    name: str
    file: str
    old: str
    new: str
    explanation: str

    @property
    def patches(self) -> tuple[Patch, ...]:
        return (Patch(self.file, self.old, self.new),)


def lay_out(host: str, change: Bug | Variant | None, folder: Path) -> Path:
    """The host's package below `folder`, changed; ValueError where a text to replace does not occur once."""
    package = folder / host
    shutil.copytree(HOSTS / host, package, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in () if change is None else change.patches:
        file = package / patch.file
        file.write_text(patched(file.read_text(encoding="utf-8"), [patch]), encoding="utf-8")
    return package


def patched(text: str, patches: Iterable[Patch]) -> str:
    """The text with the patches, one after the other; ValueError where a text to replace does not occur once."""
    for patch in patches:
        if text.count(patch.old) != 1:
            raise ValueError(f"{patch.file} must have the text once, has it {text.count(patch.old)} times: {patch.old}")
        text = text.replace(patch.old, patch.new)
    return text


def lines_at_fault(bug: Bug, package: Path) -> set[int]:
    """The numbers of the lines that a good diagnosis names."""
    lines = (package / bug.file).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.strip() in bug.line_text}
