"""How long a call takes by itself, on a machine where other programs run too."""

import time
from collections.abc import Callable
from pathlib import Path

from nsa_doctor.core.errors import Caught, attempt

_SCHEDULED = Path("/proc/thread-self/schedstat")  # nanoseconds at work and waiting for a processor, on Linux
_NANOSECONDS = 1e-9


def needed_seconds(call: Callable[[], object]) -> float:
    """Seconds in which a call computes or waits for something other than a processor; raises what the call raises.

    Where the system does not say how long it waited for a processor, seconds in which this thread computes.
    """
    start, waited, computed = time.perf_counter(), _waited(), time.thread_time()
    call()
    until = _waited()
    if waited is None or until is None:
        return time.thread_time() - computed
    return time.perf_counter() - start - (until - waited)


def _waited() -> float | None:
    """Seconds that this thread has waited for a processor since it began."""
    words = attempt(lambda: _SCHEDULED.read_text(encoding="ascii").split())
    if isinstance(words, Caught) or len(words) < 2:
        return None
    return int(words[1]) * _NANOSECONDS
