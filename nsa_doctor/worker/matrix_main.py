"""The process in which the properties of one model are measured, one cell after the other."""

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsa_doctor.adapters.hugging_face.build import build_model
from nsa_doctor.core.conformance import Cell, Status
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.probes.language.properties import Bench

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel

_MOST_BYTES = 8 << 30  # a type whose sizes no rule makes small must not take the machine's memory


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request for cells of one model; each cell is an event."""
    keep_to_one_thread()

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        _limit_memory()
        name, properties = request["model"], request["properties"]
        channel.send({"event": "measuring", "property": properties[0]})
        begin = time.perf_counter()
        model = attempt(lambda: build_model(name))
        if isinstance(model, Caught):
            for each in properties:
                _send(channel, _unbuilt(name, each, model), begin)
            return {}
        bench = Bench(model)
        for each in properties:
            channel.send({"event": "measuring", "property": each})
            begin = time.perf_counter()
            _send(channel, bench.measured(each), begin)
        return {}

    return measure


def _send(channel: "Channel", cell: Cell, begin: float) -> None:
    timed = replace(cell, seconds=round(time.perf_counter() - begin, 3))
    channel.send({"event": "cell", "cell": timed.to_json()})


def _unbuilt(name: str, property_name: str, caught: Caught) -> Cell:
    status: Status = "raises" if isinstance(caught.error, SubjectFailedError) else "cannot be built"
    return Cell(model=f"hf:{name}", property_name=property_name, status=status, text=str(caught.error))


def _limit_memory() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, most))
