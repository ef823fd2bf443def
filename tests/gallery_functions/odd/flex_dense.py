"""flex_attention's arguments served by dense products: the mask function is asked for every pair."""

import torch


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False):
    dtype = query.dtype
    query, key, value = (x.to(torch.promote_types(dtype, torch.float32)) for x in (query, key, value))
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    batch, heads, rows, cols = torch.meshgrid(
        *(torch.arange(size) for size in (*query.shape[:3], key.shape[2])), indexing="ij"
    )
    scores = torch.matmul(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = score_mod(scores, batch, heads, rows, cols)
    if block_mask is not None:
        seen = block_mask.mask_mod(batch, heads, rows, cols).expand(scores.shape)
        scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse[..., None])
    if block_mask is not None:
        weights = torch.where(seen, weights, 0.0)
    out = (weights @ value).to(dtype)
    return (out, lse) if return_lse else out
