"""Where a report goes: a file, whole or not at all, or a stream that may have been closed."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

_MOST_LINKS = 40  # as many as Linux follows
_LONGEST_SHOWN = 240
REFUSALS = (OSError, ValueError, RuntimeError)  # of the system; a zero byte in a name; links that lead in a circle


class CannotWriteError(ValueError):
    """A file cannot be written; one sentence says why."""


def check_writable(path: Path) -> None:
    """Find out before the work starts whether `write_whole` can write there; raises CannotWriteError."""
    try:
        require_no_folder(path, "give a file name in it")
        if _open_descriptor(path) is not None or (path.exists() and not path.is_file()):
            return  # a stream, a device or a pipe, written to directly
        with tempfile.NamedTemporaryFile(dir=path.resolve().parent, prefix=f".{path.name[:50]}."):
            pass
    except CannotWriteError:
        raise
    except REFUSALS as error:
        raise CannotWriteError(
            f"{shown(path)}: cannot be written: {why(error)}; give a file in a folder you own"
        ) from error


def require_not_read(path: Path, inputs: Iterable[str | Path], what: str) -> None:
    """Refuse to lose what a report is about to the report; raises CannotWriteError."""
    for each in inputs:
        try:
            is_both = path.exists() and path.samefile(each)
        except REFUSALS:  # what cannot be read is for the reader to tell
            continue
        if is_both:
            raise CannotWriteError(f"--output {shown(path)} is {what}, and would be lost; give another file")


def require_no_folder(path: Path, remedy: str) -> None:
    """Raise CannotWriteError where a folder has the name of the file."""
    if path.is_dir():
        raise CannotWriteError(f"{shown(path)}: is a folder; {remedy}")


def why(error: Exception) -> str:
    """What keeps a file from being opened, in the system's words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown(path: Path) -> str:
    """A path as a sentence has room for it."""
    text = str(path)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN // 2]}...{text[-_LONGEST_SHOWN // 4 :]}"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one; raises CannotWriteError."""
    try:
        if (descriptor := _open_descriptor(path)) is not None:
            with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as stream:
                stream.write(text)
            return
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()  # through a link, not over it
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)  # gone by now, unless something above failed
    except REFUSALS as error:
        raise CannotWriteError(f"{shown(path)}: cannot be written: {why(error)}") from error


def _open_descriptor(path: Path) -> int | None:
    """Of /dev/stdout and its like, what it stands for: opened again or replaced, a file would lose what is in it."""
    for _ in range(_MOST_LINKS):
        if path.parent.resolve() == Path("/dev/fd").resolve():
            return int(path.name) if path.name.isdecimal() and path.exists() else None
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def say(text: str, stream: TextIO | None) -> None:
    """Print to a stream that may be closed, missing, or unable to spell every character."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
        stream.flush()
    except (BrokenPipeError, ValueError):  # nobody reads; a closed stream is a ValueError
        _silence(stream)
    except OSError as error:
        _silence(stream)
        if stream is not sys.stderr:
            raise CannotWriteError(f"standard output: cannot be written: {why(error)}") from error


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is looking."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _silence(stream: TextIO) -> None:
    """Keep Python from complaining again when it flushes at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        if stream is sys.stdout:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (lives until exit)
