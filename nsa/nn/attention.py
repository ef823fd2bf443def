"""Native Sparse Attention as a module (arXiv 2502.11089): projections, rotation, three branches, gate, cache."""

from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, get_args

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nsa.backends import Impl, route
from nsa.config import NSAConfig
from nsa.nn.cache import NSACache, Tokens, added_whole
from nsa.nn.compressor import Compressor
from nsa.nn.context import Context
from nsa.nn.gate import Gate
from nsa.nn.linear import linear
from nsa.nn.projection import Projected, Projection
from nsa.nn.rope import packed_positions, rotate, rotation
from nsa.nn.step import StepParts, step, why_not_stepped
from nsa.ops.api import nsa_attention
from nsa.ops.arguments import check_slots
from nsa.ops.reads import ReadCounter
from nsa.types import CuSeqlens, GateWeights, Hidden, Output, Slots


class BranchOutputs(NamedTuple):
    """Each branch's own output, their gated mix before the output projection, the gates, and the blocks chosen."""

    compressed: Output
    selected: Output
    sliding: Output
    gated: Output
    gates: GateWeights
    slots: Slots


class NSAttention(nn.Module):
    """One attention layer: [B, T, dim] -> [B, T, dim], causal, a drop-in for grouped-query attention.

    impl: which implementation serves the branches; see `nsa.backends`. Weights are random: same seed, same weights.
    """

    def __init__(self, config: NSAConfig, impl: Impl = "auto") -> None:
        super().__init__()
        if impl not in get_args(Impl):
            raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}")
        self.config, self.geometry, self.impl = config, config.geometry, impl
        self.qkv = Projection(config)
        self.compress_k = Compressor(config.phi, self.geometry, config.d_k, bias=False)
        self.compress_v = Compressor(config.phi, self.geometry, config.d_v)
        self.gate = Gate(config.d_k, config.gate, config.gate_temperature, config.branch)
        self.out_proj = linear(config.n_heads * config.d_v, config.dim)

    def forward(
        self,
        x: Hidden,
        cache: NSACache | None = None,
        cu_seqlens: CuSeqlens | None = None,
        slots: Slots | None = None,
        context: Context | None = None,
    ) -> Hidden:
        """Attend from every token of `x` to itself and the past.

        cache: the past, which `x` continues and is added to; under `torch.no_grad()` or `inference_mode()` alone. What
        raises adds nothing.
        cu_seqlens: int32 [N + 1], where each of the sequences packed into one row starts, and the total.
        slots: [B, T, G, n_sel], hold the choice of blocks fixed.
        context: the processes that share each row; `x` is this one's part of it.
        """
        with nullcontext() if cache is None else added_whole(cache):
            is_plain = slots is None and cu_seqlens is None and context is None
            if cache is not None and is_plain and self.why_not_stepped(x, cache) is None:
                mixed = step(self._step_parts(), x, cache)
            else:
                mixed = self.branches(x, cache, cu_seqlens, slots, context).gated.flatten(2)
            out: Tensor = self.out_proj(mixed)
        return out

    def why_not_stepped(self, x: Hidden, cache: NSACache) -> str | None:
        """Why the kernels of decoding do not take `x` after the tokens of the cache, or None when they do."""
        self._check(x, cache, None)
        return f"{x.shape[1]} tokens at once" if x.shape[1] != 1 else why_not_stepped(self._step_parts(), x, cache)

    def branches(
        self,
        x: Hidden,
        cache: NSACache | None = None,
        cu_seqlens: CuSeqlens | None = None,
        slots: Slots | None = None,
        context: Context | None = None,
    ) -> BranchOutputs:
        """What `forward` computes before its output projection; the same arguments."""
        self._check(x, cache, cu_seqlens, context)
        projected = self.qkv(x)
        routes = route(x.device, projected.q.dtype, max(self.config.d_k, self.config.d_v), self.impl)
        if cache is not None:
            self._check_before_append(projected.q, cache, slots)
        gates = self.gate(projected.q.unflatten(2, (self.config.n_kv_groups, -1)).mean(3))
        positions = _positions(x, cache, cu_seqlens, context)
        turn = rotation(positions, self.config.d_k, self.config.rope_theta, projected.q.dtype)
        q, tokens = rotate(projected.q, turn), self._per_branch(projected._replace(keys=rotate(projected.keys, turn)))
        compress_k = partial(self.compress_k, cu_seqlens=cu_seqlens, impl=self.impl)
        compress_v = partial(self.compress_v, cu_seqlens=cu_seqlens, impl=self.impl)
        attend = partial(nsa_attention, geometry=self.geometry, impl=routes)
        with nullcontext() if cache is None else added_whole(cache):
            if context is not None:
                output = context.attention(attend, q, tokens, gates, self.geometry, slots, compress_k, compress_v)
            else:
                if cache is None:
                    tokens = tokens._replace(k_cmp=compress_k(tokens.k_cmp), v_cmp=compress_v(tokens.v_cmp))
                else:
                    tokens = cache.append(tokens, compress_k, compress_v)
                reads = ReadCounter() if cache is not None and cache.counts_reads else None
                output = attend(q, *tokens, gates, cu_seqlens=cu_seqlens, slots=slots, reads=reads)
                if cache is not None and reads is not None:
                    cache.count(reads)
        # One branch alone is no product with zeros: what is not finite in the others must not reach it.
        alone = {"cmp": output.compressed, "sel": output.selected, "win": output.sliding}
        gated = alone.get(self.config.branch, output.out)
        return BranchOutputs(
            output.compressed, output.selected, output.sliding, gated=gated, gates=gates, slots=output.slots
        )

    def new_cache(self, batch: int = 1, max_length: int | None = None, *, count_reads: bool = False) -> NSACache:
        """An empty cache for `batch` rows; see `NSACache`."""
        return NSACache(self.geometry, batch, max_length, count_reads=count_reads)

    def _step_parts(self) -> StepParts:
        return StepParts(self.config, self.impl, self.qkv, self.gate, self.compress_k, self.compress_v)

    def extra_repr(self) -> str:
        config = self.config
        return f"heads={config.n_heads}, groups={config.n_kv_groups}, {self.geometry}, impl={self.impl}"

    def _per_branch(self, projected: Projected) -> Tokens:
        num_branches = 1 if self.config.shared_kv else 3
        keys, values = projected.keys.chunk(num_branches, dim=2), projected.values.chunk(num_branches, dim=2)
        if self.config.shared_kv:
            keys, values = keys * 3, values * 3
        return Tokens(keys[0], values[0], keys[1], values[1], keys[2], values[2])

    def _check_before_append(self, q: Tensor, cache: NSACache, slots: Tensor | None) -> None:
        """Refuse now what `nsa_attention` would refuse once the cache has taken the tokens in."""
        config = self.config
        if cache.counts_reads and self.impl not in ("auto", "vectorized"):
            raise ValueError(f"impl must be 'auto' or 'vectorized' for a cache to count reads, got {self.impl!r}")
        if slots is not None:
            shape = (q.shape[0], q.shape[1], config.n_kv_groups)
            check_slots(slots, shape, cache.length + q.shape[1], self.geometry)

    def _check(
        self, x: Tensor, cache: NSACache | None, cu_seqlens: Tensor | None, context: Context | None = None
    ) -> None:
        if x.dim() != 3 or x.shape[2] != self.config.dim or 0 in x.shape:
            raise ValueError(f"x must be [B, T, {self.config.dim}] with B and T at least 1, got {list(x.shape)}")
        expected = next(self.qkv.parameters()).dtype  # whatever wraps the projections
        if x.dtype != expected and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"x must have the dtype of the weights, {expected}, outside autocast, got {x.dtype}")
        if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2):
            raise ValueError(f"cu_seqlens must be int32 [N + 1] for N sequences, got shape {list(cu_seqlens.shape)}")
        if cache is not None and cu_seqlens is not None:
            raise ValueError("cache and cu_seqlens exclude each other: a cache row holds one sequence")
        if context is not None:
            if cache is not None or cu_seqlens is not None:
                raise ValueError("context excludes cache and cu_seqlens: it shares rows of one whole sequence")
            why_not = context.why_not(x.shape[1] * context.size, self.geometry)
            if why_not is not None:
                raise ValueError(f"x must be a part of a sequence that context can share: {why_not}")


def _positions(
    x: Tensor, cache: NSACache | None, cu_seqlens: Tensor | None, context: Context | None
) -> Int[Tensor, " T"]:
    if context is not None:
        return context.positions(x.shape[1], x.device)
    if cu_seqlens is not None:
        return packed_positions(cu_seqlens.to(x.device), x.shape[1])
    first = 0 if cache is None else cache.length
    return torch.arange(first, first + x.shape[1], device=x.device)
