"""The configuration of a Lucid layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

IMPLEMENTATIONS = ("auto", "dense", "gather", "tiled")


@dataclass(frozen=True)
class LucidConfig:
    """Sizes, block geometry and choices of one layer.

    Compressed block number c covers the tokens [c * stride, c * stride + block).
    Selection block number b covers the tokens [b * select_block, (b + 1) * select_block).
    """

    dim: int = 48
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16

    block: int = 8
    stride: int = 4
    select_block: int = 16
    n_select: int = 5
    n_initial: int = 1
    n_local: int = 2
    window: int = 32

    rope_base: float = 10_000.0
    rope_fraction: float = 1.0
    softcap: float | None = None
    qk_norm: bool = True
    norm_eps: float = 1e-6

    impl: str = "auto"
    dense_limit: int = 96
    gather_limit: int = 176
    query_chunk: int = 32
    prefill_chunk: int = 64
    checkpoint_chunks: bool = True

    mlp_ratio: float = 2.0
    dropout: float = 0.0
    init_std: float = 0.25
    collect_stats: bool = False

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} has to be even")
        if self.block % self.stride:
            raise ValueError(f"block={self.block} is no multiple of stride={self.stride}")
        if self.block > self.select_block:
            raise ValueError(f"block={self.block} is larger than select_block={self.select_block}")
        if self.n_select < self.n_initial + self.n_local:
            raise ValueError("n_select leaves no room for the initial and the local blocks")
        if self.n_local < 1:
            raise ValueError("n_local has to be at least 1: a token's own block is always chosen")
        if not 0.0 < self.rope_fraction <= 1.0:
            raise ValueError(f"rope_fraction={self.rope_fraction} is outside of (0, 1]")
        if self.impl not in IMPLEMENTATIONS:
            raise ValueError(f"impl={self.impl!r} is none of {', '.join(IMPLEMENTATIONS)}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} is outside of [0, 1)")
        for name in ("window", "query_chunk", "prefill_chunk", "stride", "n_select"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be positive")

    @property
    def group_size(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.n_heads // self.n_kv_heads

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return self.head_dim**-0.5

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated: even, at least two."""
        return max(2, int(self.head_dim * self.rope_fraction) // 2 * 2)

    @property
    def hidden_dim(self) -> int:
        """Width of the feed-forward part."""
        return int(self.dim * self.mlp_ratio)

    def with_changes(self, **changes: Any) -> LucidConfig:
        """A copy with some fields changed; what does not exist raises TypeError."""
        return replace(self, **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LucidConfig:
        """Read a configuration file's content; unknown keys are refused by name."""
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"unknown keys: {', '.join(unknown)}")
        return cls(**values)
