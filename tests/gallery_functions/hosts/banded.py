"""Sliding-window attention over a band: each block of queries sees its own keys and those of the block before."""

import torch
import torch.nn.functional as F

WINDOW = 32


def _blocks(x, num_blocks, block):
    """[B, S, H, D] -> [B, H, n, block, D], padded with zeros behind."""
    x = x.transpose(1, 2)
    pad = num_blocks * block - x.shape[2]
    return F.pad(x, (0, 0, 0, pad)).unflatten(2, (num_blocks, block))


def _with_previous(x):
    """[B, H, n, block, D] -> [B, H, n, 2 block, D]: the block before in front; zeros before the first."""
    before = F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    return torch.cat((before, x), dim=3)


def _fold_previous(dx):
    """The gradient of `_with_previous`: both uses of a block summed."""
    before, own = dx.chunk(2, dim=3)
    own = own.clone()
    own[:, :, :-1] += before[:, :, 1:]
    return own


def _unblock(x, seqlen):
    return x.flatten(2, 3)[:, :, :seqlen].transpose(1, 2)


def _band(num_blocks, block, seqlen, device):
    """Which of its 2 block keys a query sees, [n, block, 2 block]."""
    index = torch.arange(num_blocks, device=device)[:, None, None] * block
    query = index + torch.arange(block, device=device)[:, None]
    key = index + torch.arange(-block, block, device=device)[None, :]
    seen = (key <= query) & (key > query - block)
    return seen & (key >= 0) & (key < seqlen)


class _Banded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block, scale):
        seqlen = q.shape[1]
        num_blocks = (seqlen + block - 1) // block
        work = torch.promote_types(q.dtype, torch.float32)
        qb = _blocks(q.to(work), num_blocks, block)
        kb = _with_previous(_blocks(k.to(work), num_blocks, block))
        vb = _with_previous(_blocks(v.to(work), num_blocks, block))
        band = _band(num_blocks, block, seqlen, q.device)
        s = torch.einsum("bhnqd,bhnkd->bhnqk", qb, kb) * scale
        s = s.masked_fill(~band, torch.finfo(work).min)
        lse = torch.logsumexp(s, -1, keepdim=True)
        p = torch.exp(s - lse)
        out = _unblock(p @ vb, seqlen).contiguous()
        ctx.save_for_backward(q, k, v, lse, out)
        ctx.block, ctx.scale = block, scale
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, dout):
        q, k, v, lse, out = ctx.saved_tensors
        block, scale = ctx.block, ctx.scale
        seqlen, work = q.shape[1], out.dtype
        num_blocks = (seqlen + block - 1) // block
        qb = _blocks(q.to(work), num_blocks, block)
        kb = _with_previous(_blocks(k.to(work), num_blocks, block))
        vb = _with_previous(_blocks(v.to(work), num_blocks, block))
        band = _band(num_blocks, block, seqlen, q.device)
        do = _blocks(dout.to(work), num_blocks, block)
        delta = (do * _blocks(out, num_blocks, block)).sum(-1, keepdim=True)
        s = torch.einsum("bhnqd,bhnkd->bhnqk", qb, kb) * scale
        p = torch.exp((s - lse).masked_fill(~band, -torch.inf))
        dv = _fold_previous(p.mT @ do)
        ds = p * (do @ vb.mT - delta) * scale
        dq = ds @ kb
        dk = _fold_previous(ds.mT @ qb)
        grads = (_unblock(dq, seqlen), _unblock(dk, seqlen), _unblock(dv, seqlen))
        return *(grad.to(q.dtype) for grad in grads), None, None


def sliding_window_attention(q, k, v, dropout_p=0.0, softmax_scale=None, causal=True, window_size=(WINDOW - 1, 0)):
    """Causal attention of [B, S, H, D] to the last `window_size[0] + 1` tokens, the query's own among them."""
    if not causal or window_size[0] < 0:
        raise ValueError(f"only causal windows, got causal={causal} and window_size={window_size}")
    if dropout_p:
        raise ValueError("dropout is not supported")
    if q.shape[1] != k.shape[1] or q.shape[2] != k.shape[2]:
        raise ValueError(f"only self-attention with as many key heads as heads, got {tuple(q.shape)}, {tuple(k.shape)}")
    scale = softmax_scale or q.shape[-1] ** -0.5
    return _Banded.apply(q, k, v, window_size[0] + 1, scale)
