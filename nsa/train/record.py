"""What one step was like, as every monitor tells it."""

import zlib
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

_LONGEST_SUMMED = 8192  # tokens: 64 KiB, so that a large batch costs no more than a small one


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step of the whole run; `loss` is the mean over all its targets, in nats.

    batch: `checksum` of this process's first micro-batch.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    seconds: float
    fetch_seconds: float
    batch: str

    @property
    def tokens_per_second(self) -> float:
        """Of all processes together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """The mean weight of each branch in one layer, and how far single tokens stray from it (standard deviation).

    norm: the Euclidean norm of the gate's own parameters, which stands still only if they do.
    """

    step: int
    layer: int
    compressed: float
    selected: float
    sliding: float
    spread: float
    norm: float


@dataclass(frozen=True, kw_only=True)
class DepthRecord:
    """Questions about needles from `depth` on (0 the start of a row, 1 just before the question), and answers given."""

    step: int
    depth: float
    asked: int
    right: int


def checksum(tokens: Int[Tensor, "B longer"]) -> str:
    """Eight digits by which rows that are trained and evaluated on can be compared: the CRC-32 of their first ids."""
    return f"{zlib.crc32(tokens.flatten()[:_LONGEST_SUMMED].numpy().tobytes()):08x}"
