"""A Llama-style language model around NSAttention: pre-norm blocks, SwiGLU, tied or untied head."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from nsa.backends import Impl
from nsa.config import ModelConfig
from nsa.nn.attention import NSAttention
from nsa.nn.cache import NSACache, added_whole
from nsa.nn.context import Context
from nsa.nn.linear import INITIAL_STD, Head, aligned_product, linear
from nsa.nn.norm import RMSNorm
from nsa.types import CuSeqlens, Hidden, Logits, TokenIds

_MLP_MULTIPLE = 64


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202); gate_up holds the weights of gate and up, in this order."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = linear(dim, 2 * hidden)
        self.down = linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(silu(gate) * up)
        return down


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, impl: Impl = "auto") -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = NSAttention(config, impl)
        self.mlp_norm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = SwiGLU(config.dim, config.mlp_dim or default_mlp_dim(config.dim))

    def forward(
        self,
        x: Hidden,
        cache: NSACache | None = None,
        cu_seqlens: CuSeqlens | None = None,
        context: Context | None = None,
    ) -> Hidden:
        x = x + self.attention(self.attention_norm(x), cache, cu_seqlens, context=context)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Transformer(nn.Module):
    """Token ids [B, T] -> logits [B, T, vocab_size].

    Weights start at N(0, 0.02²), those that write to the residual stream (attention.out_proj, mlp.down) at
    N(0, 0.02²/(2·n_layers)); norms at one; the gate and the compressor as their classes say. Same seed, same weights.
    With tie_embeddings the head is the embedding's weight and has no parameter of its own.
    """

    def __init__(self, config: ModelConfig, impl: Impl = "auto") -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        blocks = [Block(config, impl) for _ in range(config.n_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = None if config.tie_embeddings else Head(config.dim, config.vocab_size)
        with torch.no_grad():
            self.embedding.weight.mul_(INITIAL_STD)
            for block in blocks:
                for residual in (block.attention.out_proj, block.mlp.down):
                    residual.weight.mul_((2 * config.n_layers) ** -0.5)

    def forward(
        self,
        ids: TokenIds,
        cache: list[NSACache] | None = None,
        cu_seqlens: CuSeqlens | None = None,
        context: Context | None = None,
    ) -> Logits:
        """Logits of the token after each of `ids`; cache, cu_seqlens and context as in `NSAttention.forward`."""
        with nullcontext() if cache is None else added_whole(*cache):
            return self.logits(self.hidden_states(ids, cache, cu_seqlens, context))

    def hidden_states(
        self,
        ids: TokenIds,
        cache: list[NSACache] | None = None,
        cu_seqlens: CuSeqlens | None = None,
        context: Context | None = None,
    ) -> Hidden:
        """What the head reads: the last block's output, normalised."""
        if cache is not None and len(cache) != len(self.blocks):
            raise ValueError(f"cache must have {len(self.blocks)} layers, got {len(cache)}")
        with nullcontext() if cache is None else added_whole(*cache):
            x = self.embedding(ids)
            for index, block in enumerate(self.blocks):
                x = block(x, None if cache is None else cache[index], cu_seqlens, context)
            out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Hidden) -> Logits:
        """The head alone."""
        out: Tensor = aligned_product(hidden, self.embedding.weight) if self.head is None else self.head(hidden)
        return out

    def new_cache(self, batch: int = 1, max_length: int | None = None, *, count_reads: bool = False) -> list[NSACache]:
        """An empty cache for each layer; see `NSACache`."""
        geometry = self.config.geometry
        return [NSACache(geometry, batch, max_length, count_reads=count_reads) for _ in self.blocks]


def default_mlp_dim(dim: int) -> int:
    """8/3 · dim, rounded up to a multiple of 64: three matrices with the parameters of two of width 4 · dim."""
    return -(-(8 * dim) // (3 * _MLP_MULTIPLE)) * _MLP_MULTIPLE
