"""Where steps of a training run are computed again."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsa_doctor.worker.one_shot_main import Tell, serve


def main() -> None:
    """Meet one request, as `errand_room.serve` says."""
    serve(answered)


def answered(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """What `probes.steps_again` makes of the folder."""
    from nsa_doctor.artifacts.training_run.replay_steps import steps_again

    return asdict(steps_again(Path(request["folder"]), request["evaluated"], request["device"], tell))
