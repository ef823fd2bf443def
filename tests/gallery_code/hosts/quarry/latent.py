"""Latent attention: keys and values from one small latent per token, on tokens that the indexer selects."""

import torch
from torch import Tensor, nn

from .cache import LatentCache
from .config import QuarryConfig
from .flags import absorb
from .fused import sparse_softmax
from .indexer import Indexer
from .rope import rotate
from .utils import RMSNorm, gather_tokens, spans


class LatentAttention(nn.Module):
    """Multi-head attention on latents.

    A head's key is its projection of the latent, beside a rotated part that all heads share. Expanded, latents become
    keys and values per head; absorbed, the projections go to the other side, and heads share the latents themselves.
    """

    def __init__(self, cfg: QuarryConfig) -> None:
        """Attention of `cfg.n_heads` heads."""
        super().__init__()
        self.cfg = cfg
        self.q_down = nn.Linear(cfg.dim, cfg.q_rank, bias=False)
        self.q_norm = RMSNorm(cfg.q_rank, cfg.norm_eps)
        self.q_up = nn.Linear(cfg.q_rank, cfg.n_heads * cfg.head_dim, bias=False)
        self.kv_down = nn.Linear(cfg.dim, cfg.kv_rank, bias=False)
        self.kv_norm = RMSNorm(cfg.kv_rank, cfg.norm_eps)
        self.k_rope = nn.Linear(cfg.dim, cfg.rope_dim, bias=False)
        self.k_up = nn.Linear(cfg.kv_rank, cfg.n_heads * cfg.nope_dim, bias=False)
        self.v_up = nn.Linear(cfg.kv_rank, cfg.n_heads * cfg.v_dim, bias=False)
        self.indexer = Indexer(cfg)
        self.index_gain = nn.Parameter(torch.linspace(0.5, 1.0, cfg.n_heads))
        self.log_temperature = nn.Parameter(torch.linspace(-0.1, 0.1, cfg.n_heads))
        self.out = nn.Linear(cfg.n_heads * cfg.v_dim, cfg.dim, bias=False)
        if cfg.zero_out:
            nn.init.zeros_(self.out.weight)

    def _tokens(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """What other tokens see of these: latents, rotated keys, index keys."""
        latent = self.kv_norm(self.kv_down(x))
        return latent, rotate(self.k_rope(x), start, self.cfg.rope_base), self.indexer.keys(x)

    def _queries(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both parts of queries [B, S, H, d], and the indexer's queries and weights."""
        cfg = self.cfg
        compressed = self.q_norm(self.q_down(x))
        query = self.q_up(compressed).unflatten(-1, (cfg.n_heads, cfg.head_dim))
        plain, turned = query.split([cfg.nope_dim, cfg.rope_dim], dim=-1)
        index_query, index_weight = self.indexer.queries(x, compressed)
        return plain, rotate(turned, start, cfg.rope_base), index_query, index_weight

    def _expanded(self, plain: Tensor, turned: Tensor, latent: Tensor, rope_key: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values per head, for `sparse_softmax`."""
        cfg = self.cfg
        keys = self.k_up(latent).unflatten(-1, (cfg.n_heads, cfg.nope_dim))
        values = self.v_up(latent).unflatten(-1, (cfg.n_heads, cfg.v_dim))
        shared = rope_key.unsqueeze(-2).expand(*keys.shape[:-1], -1)
        keys = torch.cat([keys, shared], dim=-1)
        query = torch.cat([plain, turned], dim=-1)
        return query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1).transpose(1, 2)

    def _absorbed(self, plain: Tensor, turned: Tensor, latent: Tensor, rope_key: Tensor) -> tuple[Tensor, ...]:
        """Queries on latents, and latents as keys and values of all heads, for `sparse_softmax`."""
        cfg = self.cfg
        weight = self.k_up.weight.view(cfg.n_heads, cfg.nope_dim, cfg.kv_rank)
        query = torch.cat([torch.einsum("bchd,hdr->bchr", plain, weight), turned], dim=-1)
        keys = torch.cat([latent, rope_key], dim=-1)
        return query.flatten(0, 1), keys.flatten(0, 1).unsqueeze(1), latent.flatten(0, 1).unsqueeze(1)

    def _attend(self, queries: tuple[Tensor, ...], tokens: tuple[Tensor, ...], start: int, absorbing: bool) -> Tensor:
        """Outputs of queries from `start` on, given all tokens up to the last of them; [B, C, H * v_dim]."""
        cfg = self.cfg
        plain, turned, index_query, index_weight = queries
        latent, rope_key, index_key = tokens
        index, valid = self.indexer.select(index_query, index_weight, index_key, start)
        score = self.indexer.selected_scores(index_query, index_weight, index_key, index)
        bias = self.index_gain[:, None] * torch.tanh(score).unsqueeze(2)
        chosen = gather_tokens(latent, index), gather_tokens(rope_key, index)
        make = self._absorbed if absorbing else self._expanded
        q, keys, values = make(plain, turned, *chosen)
        temperature = self.log_temperature.exp()
        mixed = sparse_softmax(
            q, keys, values, bias.flatten(0, 1), valid.flatten(0, 1), temperature, cfg.head_dim**-0.5
        )
        if absorbing:
            weight = self.v_up.weight.view(cfg.n_heads, cfg.v_dim, cfg.kv_rank)
            mixed = torch.einsum("nhr,hdr->nhd", mixed, weight)
        return mixed.unflatten(0, index.shape[:2]).flatten(2)

    def _chunked(self, x: Tensor, tokens: tuple[Tensor, ...], offset: int, absorbing: bool) -> Tensor:
        """Outputs of `x`, whose first token is at position `offset` of `tokens`."""
        queries = self._queries(x, offset)
        outputs = []
        for start, end in spans(x.shape[1], self.cfg.query_chunk):
            part = tuple(item[:, start:end] for item in queries)
            seen = tuple(item[:, : offset + end] for item in tokens)
            outputs.append(self._attend(part, seen, offset + start, absorbing))
        return self.out(torch.cat(outputs, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        return self._chunked(x, self._tokens(x, 0), 0, absorb(decoding=False))

    def extend(self, x: Tensor, cache: LatentCache) -> Tensor:
        """Tokens after those in the cache, which keeps them."""
        offset = cache.length
        cache.append(*self._tokens(x, offset))
        return self._chunked(x, cache.used(), offset, absorb(decoding=x.shape[1] == 1))
