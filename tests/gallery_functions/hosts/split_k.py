"""Flash attention in base 2 with keys split among workers; backward by columns, keys padded to whole tiles."""

import math

import torch

TILE = 16
NUM_SPLITS = 3
LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


def _pad_tiles(x):
    """Pad [B, H, S, D] behind with zeros to whole tiles."""
    tail = -x.shape[2] % TILE
    return torch.nn.functional.pad(x, (0, 0, 0, tail))


def _tile_mask(col0, seqlen_q, seqlen_k, causal, device):
    """Visible keys of a tile, [Sq, TILE]; keys behind the last are padding."""
    cols = torch.arange(col0, col0 + TILE, device=device)
    mask = (cols < seqlen_k).expand(seqlen_q, TILE)
    if causal:
        rows = torch.arange(seqlen_q, device=device) + seqlen_k - seqlen_q
        mask = mask & (cols[None, :] <= rows[:, None])
    return mask


def _split_bounds(num_tiles):
    """First and last tile of each worker."""
    per_split = -(-num_tiles // NUM_SPLITS)
    return [(first, min(first + per_split, num_tiles)) for first in range(0, num_tiles, per_split)]


def _one_split(q, k, v, tiles, seqlen_k, causal, qk_scale):
    """Unnormalised output, base-2 maximum and sum over the tiles of one worker."""
    peak = q.new_full(q.shape[:-1], -math.inf)
    total = q.new_zeros(q.shape[:-1])
    acc = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for tile in range(*tiles):
        cols = slice(tile * TILE, (tile + 1) * TILE)
        s = torch.matmul(q, k[:, :, cols].mT) * qk_scale
        mask = _tile_mask(tile * TILE, q.shape[2], seqlen_k, causal, q.device)
        s = torch.where(mask, s, -math.inf)
        new_peak = torch.maximum(peak, s.amax(-1))
        base = torch.where(new_peak == -math.inf, 0.0, new_peak)
        p = torch.exp2(s - base[..., None])
        correction = torch.exp2(peak - base)
        acc = acc * correction[..., None] + p @ v[:, :, cols]
        total = total * correction + p.sum(-1)
        peak = new_peak
    return acc, peak, total


class _SplitK(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal):
        work = torch.promote_types(q.dtype, torch.float32)
        qh, kh, vh = (x.transpose(1, 2).to(work) for x in (q, k, v))
        groups, seqlen_k = q.shape[2] // k.shape[2], k.shape[1]
        kh, vh = (_pad_tiles(x.repeat_interleave(groups, 1)) for x in (kh, vh))
        parts = [
            _one_split(qh, kh, vh, tiles, seqlen_k, causal, scale * LOG2E)
            for tiles in _split_bounds(kh.shape[2] // TILE)
        ]
        peak = torch.stack([part[1] for part in parts]).amax(0)
        base = torch.where(peak == -math.inf, 0.0, peak)
        acc = qh.new_zeros(*qh.shape[:-1], vh.shape[-1])
        total = qh.new_zeros(qh.shape[:-1])
        for part_acc, part_peak, part_total in parts:
            weight = torch.exp2(part_peak - base)
            acc += part_acc * weight[..., None]
            total += part_total * weight
        safe = torch.where(total == 0, 1.0, total)
        out = torch.empty(q.shape[0], q.shape[1], q.shape[2], v.shape[-1], dtype=q.dtype, device=q.device)
        out.copy_((acc / safe[..., None]).transpose(1, 2))
        lse2 = torch.where(total == 0, math.inf, base + torch.log2(safe))
        ctx.save_for_backward(q, k, v, out, lse2)
        ctx.scale, ctx.causal = scale, causal
        lse = lse2 * LN2
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, _dlse):
        q, k, v, out, lse2 = ctx.saved_tensors
        work, scale = lse2.dtype, ctx.scale
        qh, kh, vh, oh, do = (x.transpose(1, 2).to(work) for x in (q, k, v, out, dout))
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_heads, groups = k.shape[2], q.shape[2] // k.shape[2]
        kh, vh = (_pad_tiles(x.repeat_interleave(groups, 1)) for x in (kh, vh))
        delta = (do * oh).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(qh), torch.zeros_like(kh), torch.zeros_like(vh)
        for col0 in range(0, kh.shape[2], TILE):
            cols = slice(col0, col0 + TILE)
            mask = _tile_mask(col0, seqlen_q, seqlen_k, ctx.causal, q.device)
            s = torch.matmul(qh, kh[:, :, cols].mT) * (scale * LOG2E)
            p = torch.where(mask, torch.exp2(s - lse2[..., None]), 0.0)
            dv[:, :, cols] = p.mT @ do
            dp = do @ vh[:, :, cols].mT
            ds = p * (dp - delta)
            dq += ds @ kh[:, :, cols]
            dk[:, :, cols] = ds.mT @ qh
        dq = (dq * scale).transpose(1, 2)
        dk = (dk * scale)[:, :, :seqlen_k].unflatten(1, (kv_heads, groups)).sum(2).transpose(1, 2)
        dv = dv[:, :, :seqlen_k].unflatten(1, (kv_heads, groups)).sum(2).transpose(1, 2)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def split_k_attention(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), return_attn_probs=False
):
    """Attention of [B, S, H, D]; no windows and no dropout."""
    if dropout_p or tuple(window_size) != (-1, -1):
        raise ValueError("neither dropout nor windows are supported")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = _SplitK.apply(q, k, v, scale, causal)
    return (out, lse, None) if return_attn_probs else out
