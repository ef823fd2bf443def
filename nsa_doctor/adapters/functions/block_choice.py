"""A choice of blocks that is given to sparse operators, and the keys that it lets each query read."""

import torch
from torch import Tensor

from nsa_doctor.subject.function import Shape

_EMPTY = -1


def chosen(shape: Shape, block: int, count: int, chance: torch.Generator) -> Tensor:
    """[B, S, G, n] ascending, each query's own block among them, -1 last where fewer have begun."""
    own = torch.arange(shape.queries) // block
    blocks = int(own[-1]) + 1
    ranks = torch.rand(shape.batch, shape.queries, shape.groups, blocks, generator=chance)
    begun = torch.arange(blocks) <= own[:, None]
    ranks = ranks.masked_fill(~begun[None, :, None], -1.0)
    ranks = ranks.scatter(-1, own[None, :, None, None].expand(*ranks.shape[:3], 1), 2.0)
    kept = ranks.argsort(-1, descending=True)[..., :count]
    kept = kept.masked_fill(ranks.gather(-1, kept) < 0, blocks).sort(-1).values
    kept = kept.masked_fill(kept == blocks, _EMPTY)
    return torch.nn.functional.pad(kept, (0, count - kept.shape[-1]), value=_EMPTY)


def fewer(slots: Tensor) -> Tensor:
    """Of each query's blocks the latest alone, in turn one, two … and all of them, -1 behind them."""
    count = slots.shape[-1]
    kept = torch.arange(slots.shape[1])[:, None] % count + 1  # [S, 1]
    used = (slots >= 0).sum(-1)
    kept = torch.minimum(kept.expand(used.shape[1:]), used)
    place = torch.arange(count) + (used - kept)[..., None]
    return slots.gather(-1, place.clamp_max(count - 1)).masked_fill(torch.arange(count) >= kept[..., None], _EMPTY)


def seen_by_choice(slots: Tensor, shape: Shape, block: int) -> Tensor:
    """Which keys of the chosen blocks each query may read: [B, H, S, S]."""
    key = torch.arange(shape.keys)
    is_chosen = (slots[..., None, :] == (key // block)[:, None]).any(-1)  # [B, S, G, S]
    is_chosen &= key <= torch.arange(shape.queries)[:, None, None]
    return is_chosen.transpose(1, 2).repeat_interleave(shape.heads // shape.groups, 1)
