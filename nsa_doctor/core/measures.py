"""What a policy file may set limits on: numbers a training run's folder shows."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One number as a reader calls it."""

    title: str
    unit: str = ""


MEASURES: Mapping[str, Measure] = {
    "steps": Measure("training steps made"),
    "tokens_per_second": Measure("speed, median after the first tenth", "tokens/s"),
    "loss_ratio": Measure("last tenth of the losses over the first"),
    "nonfinite_losses": Measure("losses that are not finite"),
    "watchdog_dumps": Measure("stack dumps of the watchdog"),
    "first_batch_seconds": Measure("wait for the first batch", "s"),
    "longest_silence_seconds": Measure("longest time between two heartbeats", "s"),
    "memory_growth": Measure("memory gained over the second half, as a share of it"),
    "checkpoints": Measure("checkpoints saved"),
    "resumes": Measure("starts from a checkpoint that went on"),
}
