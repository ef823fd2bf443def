"""The configuration of a Harbor decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCALINGS = ("none", "linear", "llama3")
PATHS = ("auto", "sdpa", "eager")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts beyond `original_length`."""

    kind: str = "llama3"
    factor: float = 4.0
    original_length: int = 128
    low_frequency: float = 1.0
    high_frequency: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise ValueError(f"kind={self.kind!r} is none of {', '.join(SCALINGS)}")
        if self.factor < 1.0:
            raise ValueError(f"factor={self.factor} is below 1")


@dataclass(frozen=True)
class HarborConfig:
    """Sizes and choices. Layer i is global when (i + 1) % global_every == 0, otherwise it has a window."""

    dim: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_layers: int = 2

    window: int = 48
    global_every: int = 2
    sink_tokens: int = 4
    sink_logits: bool = True
    window_softcap: float | None = 20.0
    global_softcap: float | None = None
    qk_norm: bool = True

    rope_base: float = 10_000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)

    n_experts: int = 4
    experts_per_token: int = 2
    expert_dim: int = 64

    path: str = "auto"
    query_chunk: int = 64
    prefill_chunk: int = 64
    checkpoint_attention: bool = True
    dropout: float = 0.1
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} has to be even")
        if not 1 <= self.experts_per_token <= self.n_experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} of n_experts={self.n_experts}")
        if self.path not in PATHS:
            raise ValueError(f"path={self.path!r} is none of {', '.join(PATHS)}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} is outside of [0, 1)")
        for name in ("window", "global_every", "query_chunk", "prefill_chunk", "n_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be positive")

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to everything before it."""
        return (layer + 1) % self.global_every == 0

    def layer_window(self, layer: int) -> int | None:
        """The window of a layer, None for a global one."""
        return None if self.is_global(layer) else self.window

    def layer_softcap(self, layer: int) -> float | None:
        """The bound of a layer's scores."""
        return self.global_softcap if self.is_global(layer) else self.window_softcap

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> HarborConfig:
        """Read a configuration file's content; unknown keys are refused by name."""
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"unknown keys: {', '.join(unknown)}")
        values = dict(values)
        if isinstance(values.get("rope_scaling"), dict):
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        return cls(**values)
