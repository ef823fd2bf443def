"""Configuration of a tundra stack and of its training."""

from dataclasses import dataclass


class ConfigError(ValueError):
    """A configuration that cannot be built."""


@dataclass(frozen=True)
class TundraConfig:
    """Sizes and options of a stack.

    Args:
        dim: Width of the residual stream.
        n_layers: Number of decoder layers.
        n_heads: Query heads.
        n_kv: Key and value heads; consecutive query heads share one.
        head_dim: Width of a head.
        rope_dim: Leading channels of a head that are rotated; the others know no position.
        rope_base: Base of the rotation's frequencies.
        rope_factor: By how much the slow frequencies are slowed down, 1 for not at all.
        rope_original: Context for which the frequencies were made; slow means slower than one turn in it.
        block: Tokens of a block.
        chosen: Blocks that a query reads token by token, its own and its document's first one among them.
        recency: What a block gains in score per block that it is later.
        window: Latest tokens that the sliding window shows, the query's own among them.
        sinks: First tokens of a document that the sliding window shows as well.
        query_chunk: Queries that attend at once.
        prefill_chunk: Tokens of a prompt that go through the stack at once when it is prefilled.
        dense_up_to: Tokens up to which chosen blocks are read by a mask and not gathered.
        mlp_dim: Width of the feed-forward network.
        dropout: Share of a layer's outputs that training drops.
        norm_eps: Added to mean squares before the root is taken.
        recompute: Whether training computes a layer's attention again in backward instead of keeping it.
        pages: Pages per row with which a new cache starts; more are added when they are used up.
    """

    dim: int = 48
    n_layers: int = 2
    n_heads: int = 6
    n_kv: int = 2
    head_dim: int = 12
    rope_dim: int = 8
    rope_base: float = 1000.0
    rope_factor: float = 4.0
    rope_original: int = 64
    block: int = 8
    chosen: int = 4
    recency: float = 0.02
    window: int = 16
    sinks: int = 2
    query_chunk: int = 32
    prefill_chunk: int = 24
    dense_up_to: int = 32
    mlp_dim: int = 96
    dropout: float = 0.0
    norm_eps: float = 1e-6
    recompute: bool = True
    pages: int = 4

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.n_heads % self.n_kv:
            raise ConfigError(f"n_heads ({self.n_heads}) is no multiple of n_kv ({self.n_kv})")
        if self.rope_dim % 2 or not 0 < self.rope_dim <= self.head_dim:
            raise ConfigError(f"rope_dim ({self.rope_dim}) must be even and at most head_dim ({self.head_dim})")
        if self.chosen < 2:
            raise ConfigError(f"chosen ({self.chosen}) must have room for a query's own block and for the first one")
        if self.rope_factor < 1:
            raise ConfigError(f"rope_factor ({self.rope_factor}) is less than 1")
        if min(self.block, self.window, self.query_chunk, self.prefill_chunk, self.pages) < 1 or self.sinks < 0:
            raise ConfigError(
                "block, window, query_chunk, prefill_chunk and pages must be at least 1, sinks at least 0"
            )

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.n_heads // self.n_kv


@dataclass(frozen=True)
class TrainConfig:
    """Options of the training loop.

    Args:
        vocab: Number of token ids.
        steps: Optimizer steps.
        accumulate: Micro-batches per optimizer step.
        batch: Rows of a micro-batch.
        length: Tokens of a row.
        lr: Highest learning rate.
        warmup: Steps in which the rate rises.
        floor: Share of the highest rate at which the schedule ends.
        clip: Largest norm of the gradient.
        weight_decay: Decay of matrices.
        dropout: Share of the embedded tokens' channels that training drops.
        ignore: Label that does not count.
    """

    vocab: int = 32
    steps: int = 20
    accumulate: int = 2
    batch: int = 4
    length: int = 48
    lr: float = 3e-3
    warmup: int = 4
    floor: float = 0.1
    clip: float = 0.25
    weight_decay: float = 0.05
    dropout: float = 0.1
    ignore: int = -100
