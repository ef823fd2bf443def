"""torch's own attention in the layout of flash-attn, with its alignment of causal masks."""

import torch
import torch.nn.functional as F


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), deterministic=False, **unused
):
    """[B, S, H, D]; `deterministic` is taken and makes no difference."""
    mask = None
    left, right = window_size[0], 0 if causal else window_size[1]
    if left >= 0 or right >= 0:
        rows = torch.arange(q.shape[1], device=q.device)[:, None] + (k.shape[1] - q.shape[1])
        cols = torch.arange(k.shape[1], device=q.device)[None, :]
        mask = torch.ones_like(rows - cols, dtype=torch.bool)
        mask = mask & (cols <= rows + right) if right >= 0 else mask
        mask = mask & (cols >= rows - left) if left >= 0 else mask
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout_p,
        scale=softmax_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    if mask is not None:
        out = out.masked_fill(~mask.any(-1)[:, None], 0.0)
    return out.transpose(1, 2)
