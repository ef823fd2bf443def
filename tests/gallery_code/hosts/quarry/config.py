"""Configuration of a quarry stack and of its training."""

from dataclasses import dataclass


class ConfigError(ValueError):
    """A configuration that cannot be built."""


@dataclass(frozen=True)
class QuarryConfig:
    """Sizes and options of a stack.

    Args:
        dim: Width of the residual stream.
        n_layers: Number of blocks.
        n_heads: Query heads.
        nope_dim: Width of a head's part without positions.
        rope_dim: Width of a head's rotated part; its key is shared by all heads.
        v_dim: Width of a head's values.
        q_rank: Width to which queries are compressed.
        kv_rank: Width of the latent from which keys and values come; what a cache holds.
        index_heads: Heads of the indexer.
        index_dim: Width of an index head.
        topk: Tokens that a query attends to, at most.
        window: Latest tokens that are always among them.
        query_chunk: Queries that select and attend at once.
        prefill_chunk: Tokens of a prompt that go through the stack at once when it is prefilled.
        rope_base: Base of the rotation's frequencies.
        n_experts: Routed experts.
        experts_per_token: Experts that a token is routed to.
        expert_dim: Width of a routed expert.
        shared_dim: Width of the expert that all tokens use.
        capacity_factor: Share of the tokens so far that an expert takes, in units of an even share.
        capacity_slack: Tokens that an expert takes beyond that.
        norm_eps: Added to mean squares before the root is taken.
        recompute: Whether training computes attention's inside again in backward instead of keeping it.
        zero_out: Whether output projections start at zero, so that a new stack passes its input through.
        capacity: Tokens for which a new cache has room; it grows when they are used up.
    """

    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    nope_dim: int = 12
    rope_dim: int = 8
    v_dim: int = 16
    q_rank: int = 32
    kv_rank: int = 24
    index_heads: int = 2
    index_dim: int = 8
    topk: int = 24
    window: int = 8
    query_chunk: int = 32
    prefill_chunk: int = 48
    rope_base: float = 10000.0
    n_experts: int = 4
    experts_per_token: int = 2
    expert_dim: int = 32
    shared_dim: int = 32
    capacity_factor: float = 1.0
    capacity_slack: int = 1
    norm_eps: float = 1e-6
    recompute: bool = True
    zero_out: bool = False
    capacity: int = 64

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.rope_dim % 2:
            raise ConfigError(f"rope_dim ({self.rope_dim}) is odd")
        if not 1 <= self.window <= self.topk:
            raise ConfigError(f"window ({self.window}) must be between 1 and topk ({self.topk})")
        if not 1 <= self.experts_per_token <= self.n_experts:
            raise ConfigError("experts_per_token must be between 1 and n_experts")
        if min(self.query_chunk, self.prefill_chunk, self.capacity) < 1:
            raise ConfigError("query_chunk, prefill_chunk and capacity must be at least 1")

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys, both parts."""
        return self.nope_dim + self.rope_dim


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
        clip: Largest norm of the gradient.
        weight_decay: Decay of matrices.
        aux_weight: Weight of the loss that balances experts.
        ignore: Label that does not count.
    """

    vocab: int = 32
    steps: int = 20
    accumulate: int = 2
    batch: int = 4
    length: int = 48
    lr: float = 3e-3
    warmup: int = 5
    clip: float = 1.0
    weight_decay: float = 0.05
    aux_weight: float = 0.01
    ignore: int = -100
