"""Block-sparse attention: each block of queries gathers the blocks of keys that its BlockMask lists."""

import math

import torch


def _block_lists(block_mask):
    """(counts, indices, is_full) of the partial and of the full blocks of a BlockMask."""
    yield block_mask.kv_num_blocks, block_mask.kv_indices, False
    if block_mask.full_kv_num_blocks is not None:
        yield block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True


def _score(qi, kj, scale, score_mod, b, h, rows, cols):
    s = qi @ kj.mT * scale
    if score_mod is not None:
        s = score_mod(s, b, h, rows[:, None], cols[None, :])
    return s


def _listed(block_mask, b, h, row_block):
    """The key blocks of one block of queries and whether each is full, in order."""
    found = []
    for counts, indices, is_full in _block_lists(block_mask):
        bb, hh = b if counts.shape[0] > 1 else 0, h if counts.shape[1] > 1 else 0
        count = int(counts[bb, hh, row_block])
        found += [(int(col), is_full) for col in indices[bb, hh, row_block, :count]]
    return sorted(found)


def _gathered(block_mask, b, h, row_block, seqlen_k):
    """Key positions of all listed blocks, and which of them need the mask function."""
    size = block_mask.BLOCK_SIZE[1]
    cols, partial = [], []
    for block, is_full in _listed(block_mask, b, h, row_block):
        here = torch.arange(block * size, min((block + 1) * size, seqlen_k))
        cols.append(here)
        partial.append(torch.full_like(here, not is_full, dtype=torch.bool))
    empty = torch.empty(0, dtype=torch.long)
    return torch.cat([empty, *cols]), torch.cat([empty.bool(), *partial])


class _BlockSparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, score_mod, block_mask, scale, groups):
        work = torch.promote_types(q.dtype, torch.float32)
        batch, heads, seqlen_q, _ = q.shape
        size = block_mask.BLOCK_SIZE[0]
        out = torch.zeros(batch, heads, seqlen_q, v.shape[-1], dtype=work)
        lse = torch.full((batch, heads, seqlen_q), math.inf, dtype=work)
        for b in range(batch):
            for h in range(heads):
                for start in range(0, seqlen_q, size):
                    stop = min(start + size, seqlen_q)
                    rows = torch.arange(start, stop)
                    cols, partial = _gathered(block_mask, b, h, start // size, k.shape[2])
                    if not len(cols):
                        continue
                    kj, vj = k[b, h // groups, cols].to(work), v[b, h // groups, cols].to(work)
                    bi, hi = torch.tensor(b), torch.tensor(h)
                    s = _score(q[b, h, start:stop].to(work), kj, scale, score_mod, bi, hi, rows, cols)
                    allowed = block_mask.mask_mod(bi, hi, rows[:, None], cols[None, :]) | ~partial
                    s = s.masked_fill(~allowed, -math.inf)
                    row = torch.logsumexp(s, -1)
                    dead = row == -math.inf
                    p = torch.exp(s - row.masked_fill(dead, 0.0)[:, None])
                    out[b, h, start:stop] = p @ vj
                    lse[b, h, start:stop] = row.masked_fill(dead, math.inf)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.score_mod, ctx.block_mask, ctx.scale, ctx.groups = score_mod, block_mask, scale, groups
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        work, block_mask, scale, groups = out.dtype, ctx.block_mask, ctx.scale, ctx.groups
        batch, heads, seqlen_q, _ = q.shape
        size = block_mask.BLOCK_SIZE[0]
        dq, dk, dv = (torch.zeros(x.shape, dtype=work) for x in (q, k, v))
        do = dout.to(work)
        delta = (do * out).sum(-1, keepdim=True)
        for b in range(batch):
            for h in range(heads):
                for start in range(0, seqlen_q, size):
                    here = slice(start, min(start + size, seqlen_q))
                    rows = torch.arange(start, here.stop)
                    cols, partial = _gathered(block_mask, b, h, start // size, k.shape[2])
                    if not len(cols):
                        continue
                    kj, vj = k[b, h // groups, cols].to(work), v[b, h // groups, cols].to(work)
                    bi, hi = torch.tensor(b), torch.tensor(h)
                    qi = q[b, h, here].to(work)
                    with torch.enable_grad():
                        raw = (qi @ kj.mT * scale).detach().requires_grad_()
                        s = raw if ctx.score_mod is None else ctx.score_mod(raw, bi, hi, rows[:, None], cols[None, :])
                    allowed = block_mask.mask_mod(bi, hi, rows[:, None], cols[None, :]) | ~partial
                    p = torch.exp(s.detach() - lse[b, h, here, None]).masked_fill(~allowed, 0.0)
                    ds = p * (do[b, h, here] @ vj.mT - delta[b, h, here])
                    if ctx.score_mod is not None:
                        (ds,) = torch.autograd.grad(s, raw, ds)
                    dq[b, h, here] = ds @ kj * scale
                    dk[b, h // groups].index_add_(0, cols, ds.mT @ qi * scale)
                    dv[b, h // groups].index_add_(0, cols, p.mT @ do[b, h, here])
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def _everything(b, h, q_idx, kv_idx):
    return torch.ones_like(q_idx + kv_idx, dtype=torch.bool)


def block_sparse_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False):
    """As torch's flex_attention, [B, H, S, D], on a CPU, without gradients for what `score_mod` captures."""
    if block_mask is None:
        from torch.nn.attention.flex_attention import create_block_mask

        lengths = (query.shape[2], key.shape[2])
        block_mask = create_block_mask(_everything, None, None, *lengths, device=query.device, BLOCK_SIZE=32)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError("heads differ: say enable_gqa=True")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    return _BlockSparse.apply(query, key, value, score_mod, block_mask, scale, groups)
