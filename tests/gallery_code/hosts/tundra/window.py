"""Sliding-window attention with attention sinks.

Shapes, C being queries, G groups of R heads each, d channels of a head: q [B, C, G, R, d], results alike.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import TundraConfig
from .layout import Layout
from .utils import compute_dtype, masked_softmax, spans


@dataclass(frozen=True)
class NearTokens:
    """What the window reads.

    Args:
        keys: Rotated keys of consecutive tokens up to the last query, [B, T, G, d].
        values: Their values, [B, T, G, d].
        base: Index in the row of the first of them.
        sink_keys: Rotated keys of the first tokens of each query's document, [B, C or 1, sinks, G, d].
        sink_values: Their values, alike.
    """

    keys: Tensor
    values: Tensor
    base: int
    sink_keys: Tensor
    sink_values: Tensor

    def of(self, start: int, end: int, window: int, offset: int) -> "NearTokens":
        """What the queries from `start` to `end` read, the first query of all being at index `offset` of the row."""
        low = max(0, offset + start - window + 1 - self.base)
        high = offset + end - self.base
        sinks = [x if x.shape[1] == 1 else x[:, start:end] for x in (self.sink_keys, self.sink_values)]
        return NearTokens(self.keys[:, low:high], self.values[:, low:high], self.base + low, *sinks)


def visibility(near: NearTokens, layout: Layout, cfg: TundraConfig) -> tuple[Tensor, Tensor]:
    """Which consecutive tokens, [B, C, T], and which sinks, [B, C, sinks], queries see; none in both ways."""
    own, start = layout.index[:, None], layout.start.unsqueeze(-1)
    token = torch.arange(near.base, near.base + near.keys.shape[1], device=own.device)
    seen = (token <= own) & (token > own - cfg.window) & (token >= start)
    sink = start + torch.arange(near.sink_keys.shape[2], device=own.device)
    return seen, sink <= own - cfg.window


def attend(q: Tensor, near: NearTokens, layout: Layout, cfg: TundraConfig) -> Tensor:
    """Attention of a few queries on their windows and sinks, in one softmax."""
    wide, scale = compute_dtype(q), q.shape[-1] ** -0.5
    query = q.to(wide)
    seen, sinks = visibility(near, layout, cfg)
    count = q.shape[1]
    sink_keys = near.sink_keys.to(wide).expand(-1, count, -1, -1, -1)
    sink_values = near.sink_values.to(wide).expand(-1, count, -1, -1, -1)
    logits = torch.einsum("bcgrd,btgd->bcgrt", query, near.keys.to(wide))
    sink_logits = torch.einsum("bcgrd,bcsgd->bcgrs", query, sink_keys)
    logits = torch.cat([sink_logits, logits], dim=-1) * scale
    probs = masked_softmax(logits, torch.cat([sinks, seen], dim=-1)[:, :, None, None])
    sink_probs, probs = probs.split([sink_keys.shape[2], near.keys.shape[1]], dim=-1)
    mixed = torch.einsum("bcgrt,btgd->bcgrd", probs, near.values.to(wide))
    return (mixed + torch.einsum("bcgrs,bcsgd->bcgrd", sink_probs, sink_values)).to(q.dtype)


def sliding(q: Tensor, near: NearTokens, layout: Layout, cfg: TundraConfig, chunk: int) -> Tensor:
    """Attention of all queries, `chunk` of them at once."""
    outputs = [
        attend(q[:, start:end], near.of(start, end, cfg.window, layout.offset), layout.part(start, end), cfg)
        for start, end in spans(q.shape[1], chunk)
    ]
    return torch.cat(outputs, dim=1)
