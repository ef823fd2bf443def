"""What attention is, one equation at a time in plain torch: the yardstick of the gallery's proofs, in any dtype."""

from collections.abc import Sequence

import torch
from torch import Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, Sq, Dv] and logsumexp [B, H, Sq]; key heads are shared in blocks, rows without a key are zero."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    logits = q @ k.mT * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    lowest = torch.finfo(logits.dtype).min
    if visible is not None:
        logits = logits.masked_fill(~visible, lowest)
    all_logits = logits
    if sinks is not None:
        all_logits = torch.cat((logits, sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)), -1)
    lse = torch.logsumexp(all_logits, -1)
    probs = torch.softmax(all_logits, -1)[..., : k.shape[2]]
    if visible is not None:
        probs = probs.masked_fill(~visible, 0.0)
    return probs @ v, lse


def visible_keys(
    num_queries: int, num_keys: int, *, causal: bool, window: tuple[int, int] = (-1, -1), is_bottom_right: bool
) -> Tensor | None:
    """Boolean [Sq, Sk], None where every key is visible; windows count from the diagonal."""
    left, right = window
    if causal:
        right = 0
    if left < 0 and right < 0:
        return None
    shift = num_keys - num_queries if is_bottom_right else 0
    offset = torch.arange(num_keys)[None, :] - torch.arange(num_queries)[:, None] - shift
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool)
    if right >= 0:
        seen &= offset <= right
    if left >= 0:
        seen &= offset >= -left
    return seen


def alibi_bias(slopes: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """-slope * |distance| of [H] or [B, H] slopes, the last query at the last key."""
    offset = torch.arange(num_keys)[None, :] - torch.arange(num_queries)[:, None] - (num_keys - num_queries)
    per_row = slopes if slopes.dim() == 2 else slopes[None]
    return -per_row[:, :, None, None] * offset.abs()


def alibi_slopes(num_heads: int) -> Tensor:
    """Slopes that differ from head to head."""
    return 2.0 ** (-torch.arange(1, num_heads + 1, dtype=torch.float32) * 4 / num_heads)


def bounds(lengths: Sequence[int]) -> list[int]:
    """Cumulative lengths, from 0 on."""
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]
