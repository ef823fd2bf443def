"""Configuration of a mosaic stack."""

from dataclasses import dataclass, fields, replace
from typing import Any

MIXERS = ("linear", "local")
SCANS = ("auto", "parallel", "loop", "recurrent")


class ConfigError(ValueError):
    """A configuration that cannot be built."""


@dataclass(frozen=True)
class MosaicConfig:
    """Sizes and options of a stack.

    Args:
        dim: Width of the residual stream.
        n_layers: Number of blocks; their mixers follow `pattern`, repeated.
        pattern: Which mixer each block has: "linear" (gated linear attention) or "local" (block attention).
        n_heads: Query heads of both mixers.
        n_kv_heads: Key and value heads of the local mixer; query heads share them in runs.
        chunk: Tokens that the linear mixer takes at once.
        block: Tokens of a block of local attention. A query sees its own block and the one before.
        n_landmarks: Summaries of older blocks that a query sees beyond its look-back.
        conv_width: Taps of the short convolution before the linear mixer.
        ffn_mult: Width of the feed-forward network, in units of `dim`.
        beta_floor: Least write strength of a token into the recurrent state.
        norm_eps: Added to mean squares before the root is taken.
        scan: Which scan the linear mixer uses; the environment variable MOSAIC_SCAN goes before it.
        tie_ffn: Whether all blocks share one feed-forward network.
        zero_out: Whether output projections start at zero, so that a new stack passes its input through.
        dropout: Probability at which outputs of mixers are dropped while training.
    """

    dim: int = 48
    n_layers: int = 3
    pattern: tuple[str, ...] = ("linear", "local")
    n_heads: int = 4
    n_kv_heads: int = 2
    chunk: int = 16
    block: int = 16
    n_landmarks: int = 3
    conv_width: int = 4
    ffn_mult: float = 2.0
    beta_floor: float = 0.02
    norm_eps: float = 1e-5
    scan: str = "auto"
    tie_ffn: bool = False
    zero_out: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.dim % self.n_heads:
            raise ConfigError(f"dim ({self.dim}) is no multiple of n_heads ({self.n_heads})")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads ({self.n_heads}) is no multiple of n_kv_heads ({self.n_kv_heads})")
        unknown = [name for name in self.pattern if name not in MIXERS]
        if unknown or not self.pattern:
            raise ConfigError(f"pattern {self.pattern} names something else than {MIXERS}")
        if self.scan not in SCANS:
            raise ConfigError(f"scan is {self.scan!r}, not one of {SCANS}")
        if min(self.chunk, self.block, self.conv_width, self.n_landmarks) < 1:
            raise ConfigError("chunk, block, conv_width and n_landmarks must be at least 1")

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.n_heads

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share a key and value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def ffn_dim(self) -> int:
        """Width of the feed-forward network, a multiple of eight."""
        return max(8, int(self.dim * self.ffn_mult) // 8 * 8)

    def mixer_of(self, layer: int) -> str:
        """The mixer of a layer."""
        return self.pattern[layer % len(self.pattern)]

    def with_options(self, **options: Any) -> "MosaicConfig":
        """This configuration with some options changed; unknown ones are refused."""
        known = {field.name for field in fields(self)}
        wrong = sorted(set(options) - known)
        if wrong:
            raise ConfigError(f"unknown options: {', '.join(wrong)}")
        return replace(self, **options)
