"""Where a checkpoint is read: a process with limits of its own, which answers one request."""

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsa_doctor.isolation.openmp import start_no_thread

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request for one checkpoint; the limits are for good."""
    start_no_thread()
    from nsa_doctor.artifacts.checkpoint.limits import confine
    from nsa_doctor.worker.checkpoint_main import answered  # numpy, which looks at once how many it may start

    gc.disable()  # nothing goes round in circles for long, and looking for it takes longer than the work

    def read(request: dict[str, Any]) -> dict[str, Any]:
        confine(request["seconds"])
        return answered(request)

    return read
