"""What one step was like, as every monitor tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step of the whole run; `loss` is the mean over all its targets, in nats."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    seconds: float
    fetch_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of all processes together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """The mean weight of each branch in one layer, and how far single tokens stray from it (standard deviation)."""

    step: int
    layer: int
    compressed: float
    selected: float
    sliding: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class DepthRecord:
    """Questions about needles from `depth` on (0 the start of a row, 1 just before the question), and answers given."""

    step: int
    depth: float
    asked: int
    right: int
