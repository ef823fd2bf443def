"""Attention as an object that is called, with the masks that it has made."""

import torch


class CausalAttention:
    def __init__(self, dim_limit=256):
        self.dim_limit = dim_limit
        self._masks = {}

    def _mask(self, rows, cols, device):
        key = (rows, cols, device)
        if key not in self._masks:
            self._masks[key] = torch.ones(rows, cols, dtype=torch.bool, device=device).triu(1)
        return self._masks[key]

    def __call__(self, query, key, value, *, is_causal=True, scale=None):
        if query.shape[-1] > self.dim_limit:
            raise ValueError(f"head sizes up to {self.dim_limit}, got {query.shape[-1]}")
        logits = query.mul(query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
        if is_causal:
            logits = logits.masked_fill(self._mask(*logits.shape[-2:], logits.device), torch.finfo(logits.dtype).min)
        return torch.softmax(logits, -1) @ value


attention = CausalAttention()
