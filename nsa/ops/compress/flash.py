"""The compressed branch through flash-attn: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

Queries [l − 1 + i·d, l − 1 + (i + 1)·d) all see blocks 0 … i. With those d queries laid out as d more heads of one
query, the staircase is ordinary causal attention of one query per block.
"""

from torch import Tensor
from torch.nn.functional import pad

from nsa.ops.flash_layout import laid_out
from nsa.ops.geometry import Geometry
from nsa.types import CompressedKey, CompressedValue, Output, Query


def compressed_attention(
    q: Query, k_cmp: CompressedKey, v_cmp: CompressedValue, geometry: Geometry, first_query: int
) -> Output:
    """Attention of query t = first_query + i over the compressed blocks that end at or before t."""
    num_queries, num_blocks = q.shape[1], k_cmp.shape[1]
    if num_blocks == 0:
        return pad(q[..., :0], (0, v_cmp.shape[-1]))
    seeing = max(0, geometry.l - 1 - first_query)  # the first query that sees a block
    phase = (first_query + seeing - (geometry.l - 1)) % geometry.d  # its place among the queries of its step
    steps = _fold(
        pad(q[:, seeing:], (0, 0, 0, 0, phase, -(num_queries - seeing + phase) % geometry.d)), k_cmp, geometry.d
    )
    out = _unfold(_causal(steps, k_cmp, v_cmp), k_cmp.shape[2], geometry.d)[:, phase : phase + num_queries - seeing]
    return pad(out, (0, 0, 0, 0, seeing, 0))


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention whose last query sees the last key."""
    from flash_attn import flash_attn_func

    size = max(q.shape[-1], v.shape[-1])
    out: Tensor = flash_attn_func(
        *(laid_out(x, size) for x in (q, k, v)), softmax_scale=q.shape[-1] ** -0.5, causal=True
    )
    return out[..., : v.shape[-1]]


def _fold(q: Tensor, k: Tensor, d: int) -> Tensor:
    """[B, steps·d, G·h, D] -> [B, steps, G·d·h, D]: the heads of a group stay together."""
    return q.unflatten(1, (-1, d)).unflatten(3, (k.shape[2], -1)).transpose(2, 3).flatten(2, 4)


def _unfold(out: Tensor, groups: int, d: int) -> Tensor:
    """The inverse of `_fold`."""
    return out.unflatten(2, (groups, d, -1)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
