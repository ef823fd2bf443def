"""Sizes and switches. Everything that an environment variable may override is read in env.py, not here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CobaltConfig:
    """Shape of the model.

    Names follow the paper where it has one: `block_len` is l, `stride` is d, `select_block` is l' and `top_n` is n.
    """

    vocab: int = 64
    dim: int = 32
    layers: int = 2
    heads: int = 4
    groups: int = 2
    head_dim: int = 8
    mlp_hidden: int = 64

    # compression
    block_len: int = 8
    stride: int = 4
    compressor: str = "mlp"  # mean, mlp, conv
    compressor_hidden: int = 16

    # selection; first and local blocks count towards top_n
    select_block: int = 8
    top_n: int = 4
    first_blocks: int = 1
    local_blocks: int = 2
    tie_bias: float = 1e-5

    # sliding window, the query's own token included
    window: int = 16

    rope_base: float = 10_000.0
    rope_scale: float = 1.0
    gate_hidden: int = 16
    gate_temperature: float = 1.0
    norm_eps: float = 1e-6
    init_std: float | None = None  # dim ** -0.5
    dropout: float = 0.0
    checkpoint: bool = False

    # which implementation; "auto" decides by length, see the branch's module
    selected_impl: str = "auto"
    sliding_impl: str = "auto"
    compressed_impl: str = "auto"
    dense_up_to: int = 96
    query_chunk: int = 64
    prefill_chunk: int = 128

    # how many tokens a cache can take back
    rollback: int = 128
    max_positions: int = 1 << 20

    def __post_init__(self):
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads are no multiple of {self.groups} groups")
        if self.block_len % self.stride or self.select_block % self.stride:
            raise ValueError("block_len and select_block must be multiples of stride")
        if self.first_blocks + self.local_blocks > self.top_n:
            raise ValueError("top_n must hold the forced blocks")
        if self.head_dim % 2:
            raise ValueError("RoPE needs an even head_dim")
        if self.compressor not in ("mean", "mlp", "conv"):
            raise ValueError(f"unknown compressor {self.compressor!r}")

    @property
    def per_group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.groups

    @property
    def std(self) -> float:
        return self.dim**-0.5 if self.init_std is None else self.init_std

    def num_blocks(self, length: int) -> int:
        """How many compressed blocks are complete after `length` tokens."""
        return max(0, (length - self.block_len) // self.stride + 1)

    def num_select(self, length: int) -> int:
        """How many selection blocks have a token among the first `length`."""
        return -(-length // self.select_block)


@dataclass(frozen=True)
class TrainConfig:
    lr: float = 3e-3
    min_lr_ratio: float = 0.1
    warmup: int = 4
    total_steps: int = 200
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    ema_decay: float = 0.0  # 0 is off
    ignore_index: int = -100
