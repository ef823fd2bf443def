"""A non-finite step: reported before the optimizer touches the weights, and kept so that it can be seen again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nsa.config import RunConfig
from nsa.data import Batch
from nsa.train.files import make_folder, write_json, write_tensors

_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """One step; `losses` are the sums of this process's micro-batches, `parameters` those with a bad gradient."""

    step: int
    losses: tuple[float, ...]
    gradient_norm: float
    parameters: tuple[str, ...]
    guilty_ranks: tuple[int, ...]

    @property
    def guilty_batches(self) -> list[int]:
        """Micro-batches of this process with a loss that is not finite."""
        return [index for index, loss in enumerate(self.losses) if not math.isfinite(loss)]

    def sentence(self) -> str:
        """What, how much, where."""
        ranks = f" on rank {', '.join(str(rank) for rank in self.guilty_ranks)}" if self.guilty_ranks else ""
        if self.guilty_batches or self.guilty_ranks:
            bad = self.guilty_batches
            which = f" of micro-batch {bad[0]} of {len(self.losses)}" if bad and len(self.losses) > 1 else ""
            return f"the loss{which} is {self.losses[bad[0]] if bad else 'not finite'} at step {self.step}{ranks}"
        names = ", ".join(self.parameters[:_MOST_NAMES])
        others = len(self.parameters) - _MOST_NAMES
        return (
            f"the loss of step {self.step} is finite and its gradient is not (norm {self.gradient_norm}): "
            f"{names}{f' and {others} more' if others > 0 else ''}"
        )


def keep_batches(
    folder: Path, fault: NotFinite, batches: Sequence[Batch], rank: int, traced: str, config: RunConfig
) -> Path:
    """nonfinite_step_<n>/: the batches of this process and what was seen; returns the folder."""
    place = folder / f"nonfinite_step_{fault.step:08d}"
    make_folder(place)
    write_tensors(
        place / f"batch_rank{rank}.safetensors",
        {
            "tokens": torch.stack([batch.tokens for batch in batches]),
            "documents": torch.stack([batch.documents for batch in batches]),
        },
    )
    facts = {
        "step": fault.step,
        "rank": rank,
        "losses": [loss if math.isfinite(loss) else str(loss) for loss in fault.losses],
        "gradient_norm": fault.gradient_norm if math.isfinite(fault.gradient_norm) else str(fault.gradient_norm),
        "parameters": list(fault.parameters),
        "sources": [list(batch.sources) for batch in batches],
        "traced": traced,
        "config": config.model_dump(mode="json"),
    }
    write_json(place / f"step_rank{rank}.json", facts)
    return place
