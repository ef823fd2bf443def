"""The sliding branch through torch's own fused attention: CUDA or CPU, any floating dtype, any H/G, Dv != Dk.

Half precision on CUDA takes the variable-length flash kernel, which knows windows. On a CPU, a window that holds every
key is causal attention. All else cuts queries into tiles of w and gives each the 2w − 1 keys it may see.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from nsa.ops.geometry import Geometry
from nsa.types import Key, Output, Query, Value

_MAX_KERNEL_HEAD = 256


def sliding_attention(q: Query, k: Key, v: Value, geometry: Geometry) -> Output:
    """Attention of each query over the last w keys, its own included; queries are the last T of the S key tokens."""
    largest_head = max(q.shape[-1], v.shape[-1])
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and largest_head <= _MAX_KERNEL_HEAD:
        return _by_varlen(q, k, v, geometry.w)
    if not q.is_cuda and k.shape[1] <= geometry.w:
        return _causal(q, k, v)
    return _by_tiles(q, k, v, min(geometry.w, k.shape[1]))  # a window beyond the keys would be filled with zeros


def _by_varlen(q: Tensor, k: Tensor, v: Tensor, w: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # imports the compiler: seconds that a CPU need not wait

    size_v = v.shape[-1]
    size = -(-max(q.shape[-1], size_v) // 8) * 8  # the kernel takes multiples of 8; zeros change nothing
    rows, num_queries, num_tokens = q.shape[0], q.shape[1], k.shape[1]

    def packed(x: Tensor) -> Tensor:
        return pad(x, (0, size - x.shape[-1])).flatten(0, 1)

    # torch before 2.12 serves grouped heads without being asked.
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    out = varlen_attn(
        packed(q),
        packed(k),
        packed(v),
        _offsets(rows, num_queries, q.device),
        _offsets(rows, num_tokens, q.device),
        num_queries,
        num_tokens,
        scale=q.shape[-1] ** -0.5,
        window_size=(w - 1, 0),
        **grouped,
    )
    assert isinstance(out, Tensor)
    return out.unflatten(0, (rows, num_queries))[..., :size_v]


def _offsets(rows: int, length: int, device: torch.device) -> Tensor:
    """Where each row begins in the rows one after the other, and where the last one ends."""
    return torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each query over all keys up to itself; without a mask where all S tokens ask."""
    num_queries, num_tokens = q.shape[1], k.shape[1]
    is_whole = num_queries == num_tokens
    shape = num_queries, num_tokens
    seen = None if is_whole else torch.ones(shape, dtype=torch.bool, device=q.device).tril(num_tokens - num_queries)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, seen, is_causal=is_whole, enable_gqa=True).transpose(1, 2)


def _by_tiles(q: Tensor, k: Tensor, v: Tensor, w: int) -> Tensor:
    rows, num_queries = q.shape[:2]
    size = min(w, num_queries)  # queries per tile; each tile may see size + w − 1 keys
    after = -num_queries % size
    first_query = k.shape[1] - num_queries
    before = max(0, w - 1 - first_query)
    tiles = (
        pad(q, (0, 0, 0, 0, 0, after)).unflatten(1, (-1, size)).transpose(2, 3).flatten(0, 1)
    )  # [B·tiles, H, size, Dk]
    windows = [
        pad(x[:, max(0, first_query - w + 1) :], (0, 0, 0, 0, before, after))
        .unfold(1, size + w - 1, size)  # [B, tiles, G, D, size + w − 1]
        .flatten(0, 1)
        .mT
        for x in (k, v)
    ]
    row, key = torch.arange(size, device=q.device)[:, None], torch.arange(size + w - 1, device=q.device)
    in_window = (key >= row) & (key < row + w)
    first_key = torch.arange(tiles.shape[0] // rows, device=q.device) * size - before
    exists = (first_key[:, None] + key >= 0).repeat(rows, 1)[:, None, None]
    if q.is_cuda:  # with fewer key heads than query heads, torch has no kernel there that keeps no scores
        windows = [x.repeat_interleave(q.shape[2] // k.shape[2], 1) for x in windows]
    # A padding query sees at least the padding key of its own position, so that no row is empty.
    out = scaled_dot_product_attention(tiles, windows[0], windows[1], attn_mask=in_window & exists, enable_gqa=True)
    return out.unflatten(0, (rows, -1)).transpose(2, 3).flatten(1, 2)[:, :num_queries]
