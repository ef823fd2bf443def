"""Who sees whom. True means: may be attended to."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(
    q_index: Tensor, k_index: Tensor, window: int | None, sink_tokens: int, within: Tensor | None = None
) -> Tensor:
    """[T, S] from the index of queries and keys in the sequence; keys below 0 are empty slots.

    With a window a query sees itself, the `window - 1` tokens before it and the first `sink_tokens` of the sequence.
    `within` [B, S] is a key's index in its document: the first tokens of each document are meant then; [B, T, S].
    """
    distance = q_index[:, None] - k_index[None, :]
    mask = (distance >= 0) & (k_index >= 0)
    if window is None:
        return mask
    near = distance < window
    if within is None:
        return mask & (near | (k_index < sink_tokens))
    return mask & (near | (within[:, None, : k_index.shape[0]] < sink_tokens))


def segment_ids(position_ids: Tensor) -> Tensor:
    """Number of the document per token: a new one starts where positions do not go on by one."""
    starts = torch.zeros_like(position_ids)
    starts[:, 1:] = (position_ids[:, 1:] != position_ids[:, :-1] + 1).to(starts.dtype)
    return starts.cumsum(-1)


def index_within(segments: Tensor) -> Tensor:
    """Index of each token in its document."""
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(begins, index, 0).cummax(-1).values


def restrict(
    mask: Tensor, segments: Tensor | None, padding: Tensor | None, q_slice: slice, q_index: Tensor, k_index: Tensor
) -> Tensor:
    """Narrow a mask, [T, S] or one per row, to documents and to tokens that are no padding: [B, 1, T, S].

    Without either the mask comes back as it is.

    A query keeps itself, so that rows of padding stay finite; nobody reads them.
    """
    if segments is None and padding is None:
        return mask
    wide = mask if mask.dim() == 3 else mask[None]
    if segments is not None:
        wide = wide & (segments[:, q_slice, None] == segments[:, None, : mask.shape[-1]])
    if padding is not None:
        wide = wide & padding[:, None, : mask.shape[-1]]
    itself = q_index[:, None] == k_index[None, :]
    return (wide | itself)[:, None]
