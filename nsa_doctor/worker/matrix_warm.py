"""A process that has imported transformers once, and forks one process for each model."""

import gc
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from nsa_doctor.adapters.hugging_face.installed import causal_types, config_class, library
from nsa_doctor.core.conformance import Cell, Status
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError
from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.isolation.side_by_side import side_by_side
from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.worker_process import STARTUP_SECONDS
from nsa_doctor.subject.contract import SubjectUnusableError

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel

_ROOM = "nsa_doctor.worker.matrix_main"
_IMPORTED = (  # what nearly every type imports
    "nsa_doctor.worker.matrix_main",
    "transformers.generation",
    "transformers.models.llama.modeling_llama",
)


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers which models there are, and a request to measure some; each cell is an event."""
    keep_to_one_thread()
    Children.are_forked = True

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "list":
            return _listed(request["types"])
        for name in _IMPORTED:
            attempt(lambda name=name: importlib.import_module(name))
        gc.freeze()
        _measure(request, channel)
        return {}

    return answer


def _listed(types: list[str]) -> dict[str, Any]:
    """Every type asked for, or all, and what is installed."""
    try:
        for each in types:
            if not each.endswith(".json"):
                config_class(each)
        known = types or list(causal_types())
    except SubjectUnusableError as error:
        return {"usage": str(error)}
    versions = {"transformers": str(library().__version__), "torch": version("torch")}
    return {"types": known, "versions": versions}


def _measure(request: Mapping[str, Any], channel: "Channel") -> None:
    """All cells; a model whose process hangs or dies loses one, and the rest are measured in another process."""
    waiting: dict[str, list[str]] = {name: list(properties) for name, properties in request["cells"]}
    under_way: dict[str, str] = {}

    def hear(name: str, event: Mapping[str, Any]) -> None:
        if event["event"] == "measuring":
            under_way[name] = event["property"]
        if event["event"] == "cell":
            waiting[name].remove(event["cell"]["property_name"])
            channel.send(dict(event))

    while any(waiting.values()):
        names = [name for name, properties in waiting.items() if properties]
        timing = {"startup_seconds": STARTUP_SECONDS, "making_seconds": request["seconds"]}
        requests = [{"model": name, "properties": waiting[name], **timing} for name in names]

        def keep(number: int, ended: Any, names: list[str] = names) -> None:
            name = names[number]
            if isinstance(ended, Caught):
                at = under_way.get(name, waiting[name][0])
                lost = _lost(name, at if at in waiting[name] else waiting[name][0], ended)
                hear(name, {"event": "cell", "cell": lost.to_json()})

        listeners = [lambda event, name=name: hear(name, event) for name in names]
        side_by_side(_ROOM, requests, request["seconds"], request["jobs"], keep, listeners)


def _lost(name: str, property_name: str, caught: Caught) -> Cell:
    """What a process that gave no answer says of the cell that it was at."""
    status: Status = "hangs" if isinstance(caught.error, WorkerHungError) else "dies"
    words = caught.error.crash.last_words if isinstance(caught.error, WorkerDiedError) else ""
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    text = f"{caught.error}: {last}" if last else str(caught.error)
    return Cell(model=f"hf:{name}", property_name=property_name, status=status, text=text)
