"""What came of computing steps of a run again, in the doctor's own way: numbers to hold the run's against."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ReplayedStep:
    """One step: its rows, by the checksum of each process's first batch; its loss, and the norm of its gradient.

    What is called noise is by how much a number changes when the weights before are rounded otherwise.
    """

    step: int
    batches: tuple[str, ...]
    loss: float
    loss_noise: float
    norm: float
    norm_noise: float


@dataclass(frozen=True, kw_only=True)
class ReplayedMove:
    """How far a parameter went between two checkpoints: in the run, computed again, and how far apart the two ended.

    All are Euclidean lengths; `noise` is as in ReplayedStep, with what rounding of the weights themselves may make.
    """

    name: str
    recorded: float
    replayed: float
    apart: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class ReplayedEvaluation:
    """The held-out loss with the weights of a checkpoint; `noise` is as in ReplayedStep."""

    step: int
    loss: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Steps after the checkpoint of step `first`, up to that of step `last`, 0 where none is near enough.

    `moves` are of all parameters. `evaluations` are of the last step that was evaluated and saved. `reason` says why
    nothing was computed.
    """

    first: int = 0
    last: int = 0
    steps: tuple[ReplayedStep, ...] = ()
    moves: tuple[ReplayedMove, ...] = ()
    evaluations: tuple[ReplayedEvaluation, ...] = ()
    reason: str = ""
    device: str = "cpu"

    @property
    def span(self) -> str:
        """`step 4` or `steps 4 to 6`: those that were computed again."""
        count = len(self.steps)
        return f"step {self.first + 1}" if count <= 1 else f"steps {self.first + 1} to {self.first + count}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Replay":
        """What `dataclasses.asdict` and JSON made of one."""
        steps = tuple(ReplayedStep(**{**each, "batches": tuple(each["batches"])}) for each in data["steps"])
        moves = tuple(ReplayedMove(**each) for each in data["moves"])
        evaluations = tuple(ReplayedEvaluation(**each) for each in data["evaluations"])
        return cls(**{**data, "steps": steps, "moves": moves, "evaluations": evaluations})
