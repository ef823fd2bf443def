"""An attention function for transformers that walks over chunks of queries, each of them checkpointed."""

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 32


def repeat_kv(states, n_rep):
    """[B, Hk, S, D] -> [B, Hk * n_rep, S, D], each head beside its copies."""
    if n_rep == 1:
        return states
    batch, heads, length, dim = states.shape
    states = states[:, :, None].expand(batch, heads, n_rep, length, dim)
    return states.reshape(batch, heads * n_rep, length, dim)


def _one_chunk(query, key, value, mask, sinks, scaling):
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat((scores, column.to(scores.dtype)), dim=-1)
    probs = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    if sinks is not None:
        probs = probs[..., :-1]
    return torch.matmul(probs, value)


def _causal_mask(start, stop, num_keys, shift, like):
    rows = torch.arange(start, stop, device=like.device)[:, None] + shift
    hidden = torch.arange(num_keys, device=like.device)[None, :] > rows
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(
        hidden, torch.finfo(like.dtype).min
    )


def chunked_attention_forward(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, s_aux=None, is_causal=None, **kwargs
):
    """(output [B, S, H, D], None); causal where no mask is given and the module is."""
    n_rep = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, n_rep), repeat_kv(value, n_rep)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    num_queries, num_keys = query.shape[2], key.shape[2]
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, :, :num_keys]
    outputs = []
    for start in range(0, num_queries, CHUNK):
        stop = min(start + CHUNK, num_queries)
        if attention_mask is not None:
            mask = attention_mask[:, :, start:stop]
        elif is_causal and num_queries > 1:
            mask = _causal_mask(start, stop, num_keys, num_keys - num_queries, query)
        else:
            mask = None
        part = query[:, :, start:stop]
        out = checkpoint(_one_chunk, part, key, value, mask, s_aux, scaling, use_reentrant=False)
        outputs.append(out)
    output = torch.cat(outputs, dim=2)
    return output.transpose(1, 2).contiguous(), None
