"""Which blocks a query looks at, from the probabilities of the compressed branch."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import overlaps, own_block
from .config import LucidConfig


@torch.no_grad()
def block_scores(probs: Tensor, n_blocks: int, config: LucidConfig) -> Tensor:
    """Probabilities [B, G, R, T, C] to importances of selection blocks [B, G, T, N].

    The query heads of a group choose together: they share the keys and values that are fetched.
    """
    shared = probs.detach().sum(2)
    count = shared.shape[-1]
    scores = shared.new_zeros(*shared.shape[:-1], n_blocks)
    if count == 0:
        return scores
    first, last, share = overlaps(count, config.block, config.stride, config.select_block, shared.device)
    share = share.to(shared.dtype)
    scores.index_add_(-1, first, shared * (1 - share))
    scores.index_add_(-1, last, shared * share)
    return scores


@torch.no_grad()
def choose_blocks(scores: Tensor, positions: Tensor, config: LucidConfig) -> tuple[Tensor, Tensor]:
    """The blocks with the highest importance: numbers [B, G, T, K] and whether each is one that may be seen.

    The initial blocks and the local ones, the own block among them, are always chosen. Of equal ones the earlier
    wins, which holds in every implementation and at every length.
    """
    n_blocks = scores.shape[-1]
    number = torch.arange(n_blocks, device=scores.device)
    own = own_block(positions, config.select_block)[:, None]
    behind = own - number
    local = (behind >= 0) & (behind < config.n_local)
    forced = local | ((number < config.n_initial) & (behind >= 0))
    ranked = scores.masked_fill(forced, torch.inf)
    ranked = ranked.masked_fill(behind < 0, -torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices
    chosen = order[..., : min(config.n_select, n_blocks)]
    valid = ranked.gather(-1, chosen) > -torch.inf
    return chosen, valid
