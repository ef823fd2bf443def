"""A process that has imported what cases need, once, and forks one process for each case."""

import gc
import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsa_doctor.cases.running import REGISTRY, run_each
from nsa_doctor.core.errors import attempt
from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.isolation.start import Children

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request to run cases; each outcome is an event."""
    keep_to_one_thread()
    Children.are_forked = True

    def run(request: dict[str, Any]) -> dict[str, Any]:
        for name in request["imported"]:
            importlib.import_module(name)
        if REGISTRY in request["imported"]:
            attempt(sys.modules[REGISTRY].manuals)  # what is wrong with one is said where it is asked for
        gc.freeze()  # no collector of theirs looks through what is imported
        run_each(request, lambda outcome: channel.send({"event": "outcome", "outcome": asdict(outcome)}))
        return {}

    return run
