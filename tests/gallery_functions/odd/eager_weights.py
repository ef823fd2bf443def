"""Plain attention for transformers that hands its weights out too."""

import torch
from torch import nn


def eager_attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = module.num_key_value_groups
    scaling = module.scaling if scaling is None else scaling
    if groups > 1:
        query = query.unflatten(1, (-1, groups))
        key, value = key[:, :, None], value[:, :, None]
    weights = torch.matmul(query, key.transpose(-2, -1)) * scaling
    if groups > 1:
        weights = weights.flatten(1, 2)
    if attention_mask is not None:
        weights = weights + attention_mask[..., : key.shape[-2]]
    elif getattr(module, "is_causal", True) and query.shape[-2] > 1:
        diagonal = 1 + weights.shape[-1] - weights.shape[-2]
        weights = weights.masked_fill(
            torch.ones_like(weights, dtype=torch.bool).triu(diagonal), torch.finfo(weights.dtype).min
        )
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32))
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    if groups > 1:
        out = torch.matmul(weights.unflatten(1, (-1, groups)), value).flatten(1, 2)
    else:
        out = torch.matmul(weights, value)
    return out.transpose(1, 2), weights
