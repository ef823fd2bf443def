"""Context parallelism: one sequence shared among processes, each of which attends from its own tokens.

A sequence of S tokens is cut into 2·N equal chunks for N processes; process r holds chunks r and 2·N − 1 − r, so that
all of them see about as many keys. The T queries of a chunk are the last of the tokens up to its end, which is what the
operators take: keys and values are gathered, and the chunk is given those that end with it.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, distributed

from nsa.nn.cache import Compress, Tokens
from nsa.ops.api import NSAOutput
from nsa.ops.geometry import Geometry
from nsa.types import GateWeights, Query, Slots


class Context:
    """The processes of `group`, all of the default group if None, that share each sequence.

    Every one of them makes the same calls in the same order, forward and backward.
    """

    def __init__(self, group: distributed.ProcessGroup | int | None = None) -> None:
        if isinstance(group, int):  # what `new_group` gives the processes that it leaves out
            raise ValueError("group must hold this process to share sequences with it")  # noqa: TRY004
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def own(self, x: Tensor) -> Tensor:
        """The part of whole sequences [B, S, …] that is this process's: [B, T, …]."""
        if x.shape[1] % (2 * self.size):
            raise ValueError(
                f"x must have a multiple of {2 * self.size} tokens for {self.size} processes, got {x.shape[1]}"
            )
        chunks = x.unflatten(1, (2 * self.size, -1))
        return torch.cat([chunks[:, index] for index in self._chunks()], dim=1)

    def positions(self, num_own: int, device: torch.device) -> Int[Tensor, " T"]:
        """Where in the sequence this process's tokens stand."""
        return self.own(torch.arange(num_own * self.size, device=device)[None])[0]

    def whole(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Whole sequences [B, S, …] of every process's `own` parts [B, T, …], by one exchange; the dtype is theirs.

        Backward, each process gets the sum over all processes of its part's gradient.
        """
        return _Whole.apply(self, *parts)

    def why_not(self, num_tokens: int, geometry: Geometry) -> str | None:
        """Why sequences of so many tokens cannot be shared, or None when they can."""
        return why_not_shared(num_tokens, self.size, geometry)

    def attention(
        self,
        attend: Callable[..., NSAOutput],
        q: Query,
        tokens: Tokens,
        gates: GateWeights,
        geometry: Geometry,
        slots: Slots | None,
        compress_k: Compress,
        compress_v: Compress,
    ) -> NSAOutput:
        """What `attend`, an `nsa_attention`, gives of this process's queries.

        q and the keys in `tokens` are rotated; k_cmp and v_cmp are not compressed yet.
        """
        of_chunks = _tokens_of_chunks(self, tokens, geometry, compress_k, compress_v)
        queries, weights = q.chunk(2, dim=1), gates.chunk(2, dim=1)
        held = (None, None) if slots is None else slots.chunk(2, dim=1)
        parts = [attend(queries[half], *of_chunks[half], weights[half], slots=held[half]) for half in range(2)]
        return NSAOutput(*(torch.cat(both, dim=1) for both in zip(*parts, strict=True)))

    def _chunks(self) -> tuple[int, int]:
        return self.rank, 2 * self.size - 1 - self.rank


def why_not_shared(num_tokens: int, num_processes: int, geometry: Geometry) -> str | None:
    """Why `num_processes` cannot share sequences of so many tokens, or None when they can."""
    num_chunks, shortest = 2 * num_processes, max(geometry.l - geometry.d, geometry.d)
    if num_tokens % (num_chunks * geometry.d) or num_tokens < num_chunks * shortest:
        return (
            f"{num_processes} processes share sequences of a multiple of {num_chunks * geometry.d} tokens "
            f"(2 chunks each, of whole strides of {geometry.d}), {num_chunks * shortest} at least, got {num_tokens}"
        )
    return None


@torch.compiler.disable  # type: ignore[untyped-decorator] # a compiler would have to know the processes
def _tokens_of_chunks(
    context: Context, tokens: Tokens, geometry: Geometry, compress_k: Compress, compress_v: Compress
) -> list[Tokens]:
    length = tokens.k_sel.shape[1] // 2  # of a chunk
    num_next, num_before = geometry.l - geometry.d, min(geometry.w - 1, length)
    first = [_of_each_chunk(x, slice(num_next)) for x in (tokens.k_cmp, tokens.v_cmp)]
    last = [_of_each_chunk(x, slice(length - num_before, length)) for x in (tokens.k_win, tokens.v_win)]
    k_sel, v_sel, *halos = context.whole(tokens.k_sel, tokens.v_sel, *first, *last)
    k_cmp, v_cmp = context.whole(
        _compressed(context, tokens.k_cmp, halos[0], compress_k, num_next),
        _compressed(context, tokens.v_cmp, halos[1], compress_v, num_next),
    )
    found = []
    for half, index in enumerate(context._chunks()):
        end = (index + 1) * length
        before = slice(max(0, index * num_before - geometry.w + 1), index * num_before)
        k_win, v_win = (
            torch.cat((halo[:, before], x[:, half * length : (half + 1) * length]), dim=1)
            for halo, x in zip(halos[2:], (tokens.k_win, tokens.v_win), strict=True)
        )
        num_compressed = geometry.num_compressed(end)
        visible = k_cmp[:, :num_compressed], v_cmp[:, :num_compressed], k_sel[:, :end], v_sel[:, :end]
        found.append(Tokens(*visible, k_win, v_win))
    return found


def _of_each_chunk(x: Tensor, part: slice) -> Tensor:
    """The same tokens of both chunks of [B, T, …]."""
    return x.unflatten(1, (2, -1))[:, :, part].flatten(1, 2)


def _compressed(context: Context, own: Tensor, first: Tensor, compress: Compress, num_next: int) -> Tensor:
    """The compressed blocks that begin in this process's chunks; those that the sequence's end cuts are of no use.

    first: the first `num_next` tokens of every chunk, which complete the blocks of the chunk before.
    """
    following = torch.nn.functional.pad(first, (0, 0, 0, 0, 0, num_next))
    chunks = own.unflatten(1, (2, -1)).unbind(1)
    return torch.cat(
        [
            compress(torch.cat((chunk, following[:, (index + 1) * num_next : (index + 2) * num_next]), dim=1))
            for chunk, index in zip(chunks, context._chunks(), strict=True)
        ],
        dim=1,
    )


class _Whole(torch.autograd.Function):
    """Gathers forward, and sums the gradients of all processes backward, half precision in float32."""

    @staticmethod
    def forward(ctx: Any, context: Context, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.context, ctx.shapes = context, [part.shape for part in parts]
        packed = torch.cat([part.flatten() for part in parts])
        assert packed.dtype == parts[0].dtype, "one exchange is of one dtype"
        found = packed.new_empty(context.size, packed.shape[0])
        distributed.all_gather(list(found), packed, group=context.group)
        pieces = _unpacked(found, ctx.shapes)
        return tuple(torch.cat(_in_order(piece), dim=1) for piece in pieces)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("second derivatives are not computed across processes")
        packed = torch.cat([_by_process(grad, ctx.context.size).flatten(1) for grad in grads], dim=1)
        of_own = torch.empty_like(packed)
        distributed.all_to_all_single(of_own, packed, group=ctx.context.group)
        wide = torch.promote_types(packed.dtype, torch.float32)
        # Summed here, in the order of the processes, so that the same inputs give the same bits.
        own = of_own.sum(0, keepdim=True, dtype=wide).to(packed.dtype)
        return None, *(piece[0] for piece in _unpacked(own, ctx.shapes))


def _unpacked(packed: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """[N, all numbers] -> for each shape [N, *shape]."""
    ends = accumulate((prod(shape) for shape in shapes), initial=0)
    ranges = pairwise(ends)
    return [packed[:, start:end].unflatten(1, shape) for (start, end), shape in zip(ranges, shapes, strict=True)]


def _in_order(parts: Tensor) -> list[Tensor]:
    """The chunks of all processes' parts [N, B, T, …], as they follow each other in the sequence."""
    first, second = parts.unflatten(2, (2, -1)).unbind(2)
    return [*first.unbind(0), *second.flip(0).unbind(0)]


def _by_process(x: Tensor, size: int) -> Tensor:
    """[B, S, …] -> every process's part, [N, B, T, …]."""
    first, second = x.unflatten(1, (2, size, -1)).unbind(1)
    return torch.cat((first, second.flip(1)), dim=2).transpose(0, 1)
