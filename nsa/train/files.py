"""Files of a run: written whole or not at all, and one sentence when they cannot be."""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nsa.train.failures import CannotWriteError

_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EROFS: "give a folder that can be written to",
    errno.EACCES: "give a folder you own",
    errno.EPERM: "give a folder you own",
    errno.ENOTDIR: "give a folder",
    errno.EEXIST: "give a folder",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise CannotWriteError, naming `path`, for what the operating system refuses."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        raise CannotWriteError(
            f"{path}: cannot be written: {error.strerror or error}{f'; {advice}' if advice else ''}"
        ) from error


def make_folder(path: Path) -> None:
    """With its parents, if there is none."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file; raises CannotWriteError."""
    content = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    with writing(path):
        path.touch()
        mode = path.stat().st_mode
        try:
            save_file(content, path)
        except SafetensorError as error:  # which is how it tells what the operating system refused
            match = re.search(r"os error (\d+)", str(error))
            number = int(match[1]) if match else 0
            raise OSError(number, os.strerror(number) if match else str(error)) from error
        path.chmod(mode)  # it makes files that nobody else may read


def write_whole(path: Path, content: str | bytes) -> None:
    """A reader sees the old file or the new one, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            settle(temporary)
            temporary.replace(path)
            settle(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Plain data, readable by a person."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


class Lines:
    """A file that grows by whole lines, each with the operating system before `add` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            self._file = path.open("ab", buffering=0)  # what a full disk refused is not tried again at the end
            if self._file.tell() and not _ends_its_line(path):
                self._file.write(b"\n")  # the last line of a killed run was cut short

    def add(self, line: str) -> None:
        """Raises CannotWriteError."""
        content = f"{line}\n".encode()
        with writing(self.path):
            while content:
                content = content[self._file.write(content) or 0 :]

    def hold(self) -> None:
        """Until it is closed, or the process ends in whatever way, `is_held_by_another` says so to others."""
        lock(self._file)

    def close(self) -> None:
        """No line follows."""
        self._file.close()


def lock(file: IO[Any], *, is_shared: bool = False) -> bool:
    """Whether an open file is now this process's own, or of all that share it; where files cannot be locked, it is."""
    try:
        import fcntl  # not on every system

        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def is_held_by_another(path: Path) -> bool:
    """Whether a process that lives has it locked; False where there is no such file, or none can be locked."""
    try:
        with path.open("rb+") as file:
            return not lock(file, is_shared=True)  # two that look at once are no holders to each other
    except OSError:
        return False


def settle(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_unique(folder: Path, prefix: str, stamp: int) -> Path:
    """An empty file `prefix_<stamp>.txt`, with the next free number when two are made in one second."""
    while True:
        path = folder / f"{prefix}_{stamp}.txt"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            stamp += 1
        else:
            return path


def _ends_its_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
