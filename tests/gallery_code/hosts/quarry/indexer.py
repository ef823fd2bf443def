"""The indexer: which earlier tokens a query attends to."""

import torch
from torch import Tensor, nn

from .config import QuarryConfig
from .utils import RMSNorm, compute_dtype, gather_tokens


class Indexer(nn.Module):
    """Scores earlier tokens with a few small heads and selects the best.

    The score of a token is a weighted sum over index heads of relu(query . key), the weights depending on the query.
    Selection has no gradient; scores of selected tokens do, and go into attention as a bias.
    """

    def __init__(self, cfg: QuarryConfig) -> None:
        """An indexer of `cfg.index_heads` heads."""
        super().__init__()
        self.cfg = cfg
        self.query = nn.Linear(cfg.q_rank, cfg.index_heads * cfg.index_dim, bias=False)
        self.key = nn.Linear(cfg.dim, cfg.index_dim, bias=False)
        self.key_norm = RMSNorm(cfg.index_dim, cfg.norm_eps)
        self.weight = nn.Linear(cfg.dim, cfg.index_heads, bias=False)

    def keys(self, x: Tensor) -> Tensor:
        """Index keys of tokens, [B, S, index_dim]."""
        return self.key_norm(self.key(x))

    def queries(self, x: Tensor, compressed: Tensor) -> tuple[Tensor, Tensor]:
        """Index queries [B, S, heads, index_dim] and weights of heads [B, S, heads]."""
        cfg = self.cfg
        query = self.query(compressed).unflatten(-1, (cfg.index_heads, cfg.index_dim)) * cfg.index_dim**-0.5
        return query, self.weight(x) * cfg.index_heads**-0.5

    @torch.no_grad()
    def select(self, query: Tensor, weight: Tensor, keys: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The tokens that queries at positions `start`, `start + 1`, ... attend to.

        Of tokens with the same score the earliest goes first, whatever the length.

        Returns:
            Positions [B, C, K], K <= topk, and whether each is one that the query may see.
        """
        cfg = self.cfg
        wide = compute_dtype(query)
        position = torch.arange(keys.shape[1], device=keys.device)
        own = torch.arange(start, start + query.shape[1], device=keys.device)[:, None]
        products = torch.einsum("bchd,btd->bcht", query.to(wide), keys.to(wide)).relu()
        score = torch.einsum("bch,bcht->bct", weight.to(wide), products)
        recent = (position <= own) & (position > own - cfg.window)
        score = score.masked_fill(recent, torch.inf).masked_fill(position > own, -torch.inf)
        best, index = score.sort(dim=-1, descending=True, stable=True)
        count = min(cfg.topk, keys.shape[1])
        return index[..., :count], best[..., :count] > -torch.inf

    def selected_scores(self, query: Tensor, weight: Tensor, keys: Tensor, index: Tensor) -> Tensor:
        """Scores of selected tokens, with gradients, [B, C, K]."""
        chosen = gather_tokens(keys, index)
        products = torch.einsum("bchd,bckd->bchk", query, chosen).relu()
        return torch.einsum("bch,bchk->bck", weight, products)
