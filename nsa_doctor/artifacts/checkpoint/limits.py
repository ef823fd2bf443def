"""What reading a checkpoint may cost, and how that is enforced on a process."""

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.fault import FaultError
from nsa_doctor.isolation.orphans import end_with_parent

MOST_MEMORY = 768 * 2**20  # beyond what Python and numpy take by themselves
MOST_TENSORS = 200_000
MOST_OPERATIONS = 8_000_000  # of a pickle
MOST_HEADER = 100_000_000  # the safetensors library's own
MOST_PICKLE = 64 * 2**20
MOST_INDEX = 64 * 2**20
MOST_NESTING = 64
MOST_DIRECTORY = 64 * 2**20  # of an archive
LONGEST_NAME = 20_000
MOST_FILES = 16_384
MOST_DIMENSIONS = 64
LARGEST_SIZE = 2**63 - 1  # of a side, a stride or a number of bytes: torch counts in 64 bits
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_USUAL_SPACE = 2**29
_OWN_FILES, _NONE = 64, resource.RLIM_INFINITY
_SPARE_SECONDS = 15  # the parent ends what overruns; this is for a child whose parent is gone


class Deadline:
    """Runs out after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end

    def check(self, doing: str) -> None:
        """Raise the fault that says so when the time is up."""
        if self.is_over:
            raise FaultError("limit", f"{doing} takes more than {self.seconds:g} s; --timeout allows more")


def confine(seconds: float) -> None:
    """Hold this process to limits for good: memory, time, no file written, no process started, no network if possible.

    What a system does not know how to limit stays as it is.
    """
    end_with_parent()  # nobody wants the answer any more; where the kernel cannot be asked, the alarm ends it
    _cut_network()
    ends = int(seconds) + _SPARE_SECONDS
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CPU: ends,
        resource.RLIMIT_NPROC: 0,
    }
    if sys.platform == "linux":  # elsewhere it is not held, or covers what a library has merely reserved
        wanted[resource.RLIMIT_AS] = _address_space() + MOST_MEMORY
    with suppress(ValueError, OSError):
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = MOST_FILES + _OWN_FILES
        resource.setrlimit(resource.RLIMIT_NOFILE, (room if most_files == _NONE else min(room, most_files), most_files))
    for what, most in wanted.items():
        with suppress(ValueError, OSError):
            _, hard = resource.getrlimit(what)
            most = most if hard == _NONE else min(most, hard)
            resource.setrlimit(what, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails instead
    signal.alarm(ends)


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _address_space() -> int:
    """What this process has reserved so far, more or less."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return _USUAL_SPACE
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cut_network() -> None:
    """Move to a network of our own with nothing in it, where the kernel lets us."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None and unshare(_CLONE_NEWNET) != 0:
        unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
