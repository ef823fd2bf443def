"""A run to a checkpoint and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nsa.train.checkpoint import Snapshot, write_checkpoint
from nsa.train.failures import RefusedError
from nsa.train.feed import Feed
from nsa.train.moments import (
    load_model_tensors,
    load_optimizer_tensors,
    load_random,
    model_tensors,
    optimizer_tensors,
    random_scalars,
    random_tensors,
)
from nsa.train.record import StepRecord
from nsa.train.setup import Machinery
from nsa.train.world import World


@dataclass
class History:
    """What a run has been through, over all its lives."""

    first_loss: float | None = None
    last_loss: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    lives: int = 1
    held_out: dict[int, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    skipped_in_a_row: int = 0

    def add(self, record: StepRecord) -> None:
        """A step was made."""
        self.first_loss = record.loss if self.first_loss is None else self.first_loss
        self.last_loss = record.loss
        self.tokens += record.tokens
        self.seconds += record.seconds

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "History":
        """What `asdict` and JSON made of one, in a life that follows."""
        held_out = {int(step): float(loss) for step, loss in fields["held_out"].items()}
        return cls(**{**fields, "held_out": held_out, "lives": fields["lives"] + 1})


def save(machinery: Machinery, feed: Feed, world: World, history: History, folder: Path, step: int) -> Path:
    """checkpoints/step_<n>; every process has its part in it, the first one writes."""
    model, optimizer = model_tensors(machinery.model), optimizer_tensors(machinery.optimizer, machinery.model)
    own = {"data": feed.state(), "python_random": random_scalars()}
    gathered = world.gather_objects((own, random_tensors(machinery.device)))
    path = folder / "checkpoints"
    if world.is_first:
        snapshot = Snapshot(
            step=step,
            model=model,
            optimizer=optimizer,
            rng={f"rank{rank}.{name}": value for rank, (_, rng) in enumerate(gathered) for name, value in rng.items()},
            state={
                "step": step,
                "config": machinery.config.model_dump(mode="json"),
                "history": asdict(history),
                "processes": [facts for facts, _ in gathered],
            },
        )
        write_checkpoint(path, snapshot, machinery.config.train.keep_last)
    world.wait()
    return path / f"step_{step:08d}"


def restore(snapshot: Snapshot, machinery: Machinery, world: World, where: str) -> History:
    """Weights, optimizer and generators as they were; the position in the data is `data_state`'s."""
    try:
        load_model_tensors(machinery.model, snapshot.model)
        load_optimizer_tensors(machinery.optimizer, machinery.model, snapshot.optimizer)
        processes = snapshot.state["processes"]
        if world.rank < len(processes):
            prefix = f"rank{world.rank}."
            rng = {name.removeprefix(prefix): value for name, value in snapshot.rng.items() if name.startswith(prefix)}
            load_random(rng, processes[world.rank]["python_random"], machinery.device)
        return History.read(snapshot.state["history"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RefusedError(f"{where} does not fit this run: {error}") from error


def data_state(snapshot: Snapshot, world: World, where: str) -> Mapping[str, Any]:
    """Where in the data this process stands; with another number of processes only if it is the same for all."""
    processes = snapshot.state.get("processes")
    states = [each.get("data") for each in processes] if isinstance(processes, list) else []
    shared = _context_size(snapshot)
    if len(states) == world.size and shared == world.context_size:
        return dict(states[world.rank])
    if not states or any(each != states[0] for each in states):
        raise RefusedError(
            f"{where} is of a run of {len(states)} processes, {shared} to a row, and this one has {world.size}, "
            f"{world.context_size} to a row"
        )
    return dict(states[0])


def _context_size(snapshot: Snapshot) -> int:
    """How many processes shared a row; one in runs from before there was a choice."""
    config = snapshot.state.get("config")
    runtime = config.get("runtime") if isinstance(config, dict) else None
    found = runtime.get("context_parallel") if isinstance(runtime, dict) else None
    return found if isinstance(found, int) else 1
