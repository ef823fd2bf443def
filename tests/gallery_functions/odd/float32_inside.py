"""Attention with float32 arithmetic, as kernels have it; float64 is refused."""

import torch


def flash_attention(q, k, v, softmax_scale=None, causal=False):
    if q.dtype == torch.float64:
        raise TypeError("float64 is not supported: use float32, bfloat16 or float16")
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"as many key heads as heads, got {k.shape[2]} and {q.shape[2]}")
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    qf, kf, vf = (x.float().transpose(1, 2) for x in (q, k, v))
    s = qf @ kf.mT * scale
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2]), float("-inf"))
    lse = torch.logsumexp(s, -1)
    empty = lse == float("-inf")
    out = torch.exp(s - lse.masked_fill(empty, 0.0)[..., None]) @ vf
    return out.transpose(1, 2).to(q.dtype), lse
