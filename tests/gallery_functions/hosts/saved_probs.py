"""Attention as one autograd function that keeps its probabilities, with a gradient for a learned bias."""

import torch


def _reduce_to(grad, shape):
    """Sum a gradient over the sides that were broadcast."""
    extra = grad.dim() - len(shape)
    if extra:
        grad = grad.sum(tuple(range(extra)))
    wide = tuple(side for side, size in enumerate(shape) if size == 1 and grad.shape[side] != 1)
    return grad.sum(wide, keepdim=True) if wide else grad


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, hidden, scale):
        attn = torch.matmul(q, k.transpose(-2, -1))
        attn = attn.mul_(scale)
        if bias is not None:
            attn = attn + bias
        if hidden is not None:
            attn = attn.masked_fill(hidden, torch.finfo(attn.dtype).min)
        probs = torch.softmax(attn, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        if hidden is not None:
            probs = probs.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        out = torch.matmul(probs, v)
        ctx.save_for_backward(q, k, v, probs)
        ctx.scale = scale
        ctx.bias_shape = None if bias is None else bias.shape
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, probs = ctx.saved_tensors
        grad_v = torch.matmul(probs.transpose(-2, -1), grad_out)
        grad_probs = torch.matmul(grad_out, v.transpose(-2, -1))
        inner = (grad_probs * probs).sum(dim=-1, keepdim=True)
        grad_attn = probs * (grad_probs - inner)
        grad_q = torch.matmul(grad_attn, k) * ctx.scale
        grad_k = torch.matmul(grad_attn.transpose(-2, -1), q) * ctx.scale
        grad_bias = None
        if ctx.bias_shape is not None and ctx.needs_input_grad[3]:
            grad_bias = _reduce_to(grad_attn, ctx.bias_shape)
        return grad_q, grad_k, grad_v, grad_bias, None, None


def fused_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """As torch's scaled_dot_product_attention without grouped heads; a float mask gets a gradient."""
    if dropout_p > 0.0:
        raise NotImplementedError("dropout_p > 0")
    bias, hidden = None, None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = ~attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    if is_causal:
        future = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).triu(diagonal=1)
        hidden = future if hidden is None else hidden | future
    scale = q.size(-1) ** -0.5 if scale is None else scale
    return FusedAttention.apply(q, k, v, bias, hidden, scale)
