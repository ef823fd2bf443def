"""Opens the files that an index names, which must lie beside it."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.fault import FaultError, incomplete, quoted, too_much, unsafe
from nsa_doctor.artifacts.checkpoint.limits import MOST_FILES
from nsa_doctor.artifacts.checkpoint.source import Source, opened


def open_beside(index: Source, folder: Path, files: Iterable[str], stack: ExitStack) -> dict[str, Source]:
    """Each file by its name, open as long as the stack; a FaultError for a name that leads elsewhere, or to nothing."""
    names = list(dict.fromkeys(files))
    if len(names) > MOST_FILES:
        raise too_much(index.name, f"{len(names):,} files", MOST_FILES)
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise unsafe(index.name, f"it names {quoted(name)}, which is not in its folder")
    return {name: _opened(index, folder, name, stack) for name in names}


def _opened(index: Source, folder: Path, name: str, stack: ExitStack) -> Source:
    try:
        return stack.enter_context(opened(str(folder / name), f"{index.name}: {quoted(name)}"))
    except FaultError as fault:
        if fault.kind == "missing":
            raise incomplete(index.name, f"{quoted(name)} is not there") from None
        raise
