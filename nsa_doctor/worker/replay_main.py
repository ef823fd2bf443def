"""Where steps of a training run are computed again."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa_doctor.worker.main import Channel


def open_room(channel: "Channel") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What answers a request for one run."""
    channel.tick()
    return lambda request: answered(request, channel.tell)


def answered(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """What `replay_steps.steps_again` makes of the folder."""
    from nsa_doctor.artifacts.training_run.replay_steps import steps_again

    return asdict(steps_again(Path(request["folder"]), request["evaluated"], request["device"], tell))
