"""The sliding branch through flash-attn: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk."""

from torch import Tensor

from nsa.ops.flash_layout import laid_out
from nsa.ops.geometry import Geometry
from nsa.types import CuSeqlens, Key, Output, Query, Value


def sliding_attention(q: Query, k: Key, v: Value, geometry: Geometry) -> Output:
    """Attention of each query over the last w keys, its own included; queries are the last T of the S key tokens."""
    from flash_attn import flash_attn_func

    size = max(q.shape[-1], v.shape[-1])
    out: Tensor = flash_attn_func(
        *(laid_out(x, size) for x in (q, k, v)),
        softmax_scale=q.shape[-1] ** -0.5,
        causal=True,
        window_size=(geometry.w - 1, 0),
    )
    return out[..., : v.shape[-1]]


def sliding_attention_packed(
    q: Query, k: Key, v: Value, geometry: Geometry, cu_seqlens: CuSeqlens, max_length: int
) -> Output:
    """The same for sequences packed in one row [1, S, …]; `cu_seqlens` int32 [N + 1], validated by the caller."""
    from flash_attn import flash_attn_varlen_func

    size = max(q.shape[-1], v.shape[-1])
    out: Tensor = flash_attn_varlen_func(
        *(laid_out(x, size)[0] for x in (q, k, v)),
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_length,
        max_seqlen_k=max_length,
        softmax_scale=q.shape[-1] ** -0.5,
        causal=True,
        window_size=(geometry.w - 1, 0),
    )
    return out[None, ..., : v.shape[-1]]
