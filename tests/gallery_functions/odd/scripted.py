"""Attention compiled by torch.jit.script."""

import math
import warnings

import torch
from torch import Tensor


def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if is_causal:
        future = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(future, -float("inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), value)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    attention = torch.jit.script(_attention)
