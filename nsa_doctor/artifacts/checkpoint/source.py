"""A file opened for reading by position, once it is known to be an ordinary one."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nsa_doctor.artifacts.checkpoint.fault import FaultError, cut_short, quoted

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True)
class Source:
    """`num_bytes` of an open file from `start` on; `name` is what sentences call it."""

    name: str
    descriptor: int
    start: int
    num_bytes: int

    def read(self, start: int, count: int) -> bytes:
        """Exactly that many bytes from there on; a FaultError where the file does not have them."""
        if start < 0 or count < 0 or start + count > self.num_bytes:
            raise cut_short(self.name, f"it has {self.num_bytes:,} bytes, and {start + count:,} are spoken of")
        parts, position, left = [], self.start + start, count
        while left:
            try:
                part = os.pread(self.descriptor, min(left, 2**30), position)
            except OSError as error:
                raise FaultError("denied", f"{self.name} cannot be read: {error.strerror}") from None
            if not part:
                raise FaultError("truncated", f"{self.name} became shorter while it was read; wait until it is written")
            parts.append(part)
            position, left = position + len(part), left - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def window(self, start: int, count: int, name: str) -> "Source":
        """A part of it, as if it were a file of its own."""
        if start < 0 or count < 0 or start + count > self.num_bytes:
            raise cut_short(self.name, f"it has {self.num_bytes:,} bytes, and {start + count:,} are spoken of")
        return replace(self, name=name, start=self.start + start, num_bytes=count)


@contextmanager
def opened(path: str, name: str) -> Iterator[Source]:
    """The file at that path; a FaultError says why it cannot be had."""
    descriptor = _descriptor(path, name)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FaultError("irregular", f"{name} is no file any more; give the path of a checkpoint")
        yield Source(name, descriptor, 0, status.st_size)
    finally:
        os.close(descriptor)


def _descriptor(path: str, name: str) -> int:
    if kind_of(path, name) == "folder":  # and opening a pipe or a device may wait, or do something
        raise FaultError("irregular", f"{name} is a folder where a file should be; give the path of the checkpoint")
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(path, name, error) from None


def kind_of(path: str, name: str) -> str:
    """`file` or `folder`; a FaultError for what is neither, or not there."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise _refused(path, name, error) from None
    except ValueError:  # a NUL in the name
        raise FaultError("missing", f"{name} is no path: it holds a NUL") from None
    if stat.S_ISDIR(mode):
        return "folder"
    for is_kind, word in _KINDS:
        if is_kind(mode):
            raise FaultError(
                "irregular", f"{name} is {word}, not a file; save the checkpoint to disk and give its path"
            )
    return "file"


def _refused(path: str, name: str, error: OSError) -> FaultError:
    if error.errno == errno.ELOOP:
        return FaultError("irregular", f"{name} is a link that leads back to itself; give the path of the file")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.islink(path):
            target = quoted(os.readlink(path))
            return FaultError("missing", f"{name} is a link to {target}, which is not there; give the path of the file")
        return FaultError("missing", f"{name} is not there; check the path")
    if error.errno in (errno.EACCES, errno.EPERM):
        return FaultError("denied", f"{name} may not be read by this user; ask for permission to read it")
    return FaultError("denied", f"{name} cannot be read: {error.strerror}")
