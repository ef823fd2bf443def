"""Attention on blocks: coarsely on their means, and token by token on those that a query chooses.

Shapes, C being queries, G groups of R heads each, N blocks, d channels of a head: q [B, C, G, R, d], results alike.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import TundraConfig
from .layout import Layout
from .utils import compute_dtype, masked_softmax


@dataclass(frozen=True)
class BlockTokens:
    """What queries read of blocks.

    Args:
        keys: Rotated keys of tokens in any order, [M, G, d].
        values: Their values, [M, G, d].
        slots: Which of them each block has, [B, N, block]; any where a short block has none.
        mean_keys: Means of a block's keys without rotation, [B, N, G, d].
        mean_values: Means of its values, [B, N, G, d].
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    mean_keys: Tensor
    mean_values: Tensor


def coarse(q: Tensor, blocks: BlockTokens, layout: Layout) -> tuple[Tensor, Tensor]:
    """Attention on the means of complete blocks, and the logits [B, C, G, R, N], which know no positions.

    A query sees the mean of a block of its document from the block's last token on. One that sees none gets zeros.
    """
    wide = compute_dtype(q)
    logits = torch.einsum("bcgrd,bngd->bcgrn", q.to(wide), blocks.mean_keys) * q.shape[-1] ** -0.5
    last = layout.place[..., -1].unsqueeze(1)
    number = torch.arange(last.shape[-1], device=q.device)
    visible = (last >= 0) & (last <= layout.index[:, None]) & (number >= layout.first.unsqueeze(-1))
    probs = masked_softmax(logits, visible[:, :, None, None])
    return torch.einsum("bcgrn,bngd->bcgrd", probs, blocks.mean_values).to(q.dtype), logits


@torch.no_grad()
def choose(logits: Tensor, layout: Layout, cfg: TundraConfig) -> tuple[Tensor, Tensor]:
    """The blocks that queries read: their own, their document's first one, and the earlier ones of highest score.

    Heads of a group choose together. Of two blocks with means alike, the later one scores higher.

    Returns:
        Numbers of blocks, [B, C, G, K] with K <= chosen, and whether each is one that the query may read.
    """
    number = torch.arange(logits.shape[-1], device=logits.device)
    own, first = layout.segment.unsqueeze(-1), layout.first.unsqueeze(-1)
    score = logits.mean(3) + cfg.recency * number
    always = (number == own) | (number == first)
    allowed = (number >= first) & (number <= own)
    score = score.masked_fill(always.unsqueeze(2), torch.inf).masked_fill(~allowed.unsqueeze(2), -torch.inf)
    best, index = score.sort(dim=-1, descending=True, stable=True)
    count = min(cfg.chosen, logits.shape[-1])
    return index[..., :count], best[..., :count] > -torch.inf


def _lookup(x: Tensor, token: Tensor) -> Tensor:
    """Rows of heads: x [M, G, d], token [B, C, G, T], result [B, C, G, T, d]."""
    groups = x.shape[1]
    head = torch.arange(groups, device=x.device)[:, None]
    return F.embedding(token * groups + head, x.flatten(0, 1))


def gathered(q: Tensor, blocks: BlockTokens, chosen: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
    """Attention on the tokens of chosen blocks, each query with keys and values of its own."""
    number, valid = chosen
    batch = torch.arange(q.shape[0], device=q.device)[:, None, None, None]
    token = blocks.slots[batch, number].flatten(-2)
    place = layout.place[batch, number].flatten(-2)
    shown = valid.repeat_interleave(blocks.slots.shape[-1], dim=-1)
    visible = shown & (place >= 0) & (place <= layout.index[:, None, None])
    wide = compute_dtype(q)
    keys, values = _lookup(blocks.keys, token).to(wide), _lookup(blocks.values, token).to(wide)
    logits = torch.einsum("bcgrd,bcgtd->bcgrt", q.to(wide), keys) * q.shape[-1] ** -0.5
    probs = masked_softmax(logits, visible.unsqueeze(3))
    return torch.einsum("bcgrt,bcgtd->bcgrd", probs, values).to(q.dtype)


def by_mask(q: Tensor, blocks: BlockTokens, chosen: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
    """The same on all tokens, with a mask of those in chosen blocks; for few tokens."""
    number, valid = chosen
    batch, count, groups, heads, _ = q.shape
    listed = torch.zeros(*number.shape[:3], layout.place.shape[1], dtype=torch.bool, device=q.device)
    listed = listed.scatter(-1, number, valid)
    place = layout.place.flatten(1)[:, None, None]
    visible = listed.repeat_interleave(layout.place.shape[-1], dim=-1)
    visible = visible & (place >= 0) & (place <= layout.index[:, None, None])
    wide = compute_dtype(q)
    slots = blocks.slots.flatten(1)
    keys, values = blocks.keys[slots].to(wide).transpose(1, 2), blocks.values[slots].to(wide).transpose(1, 2)
    query = q.to(wide).permute(0, 2, 3, 1, 4).flatten(1, 2)
    mask = visible.transpose(1, 2).repeat_interleave(heads, dim=1)
    keys, values = keys.repeat_interleave(heads, dim=1), values.repeat_interleave(heads, dim=1)
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return mixed.view(batch, groups, heads, count, -1).permute(0, 3, 1, 2, 4).to(q.dtype)
