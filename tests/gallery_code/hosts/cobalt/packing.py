"""Padding and packed documents: every document becomes a row of its own, and its outputs go back to where it was.

Documents are laid to the left of rows as long as the longest one. What is behind them is never seen, as all is
causal, and is dropped afterwards.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowPlan:
    """Where tokens of a [B, S] batch are in [R, T] rows."""

    row: Tensor  # [K], of each kept token
    column: Tensor  # [K]
    source: Tensor  # [K], its place in the flattened batch
    rows: int
    width: int

    def pack(self, x: Tensor) -> Tensor:
        out = x.new_zeros(self.rows, self.width, x.shape[-1])
        return out.index_put((self.row, self.column), x.flatten(0, 1)[self.source])

    def unpack(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Back to [B, S, dim]; padding is zero."""
        flat = rows.new_zeros(shape[0] * shape[1], rows.shape[-1])
        return flat.index_copy(0, self.source, rows[self.row, self.column]).view(*shape, -1)


def segments(shape: torch.Size, document_ids: Tensor | None, cu_seqlens: Tensor | None, device: torch.device) -> Tensor:
    """A number for each token of [B, S], the same for neighbours of one document and ascending from zero."""
    batch, length = shape
    begins = torch.zeros(batch, length, dtype=torch.bool, device=device)
    begins[:, 0] = True
    if document_ids is not None:
        begins[:, 1:] |= document_ids[:, 1:] != document_ids[:, :-1]
    flat = begins.flatten()
    if cu_seqlens is not None:
        edges = cu_seqlens.to(device=device, dtype=torch.long).flatten()
        flat = flat.index_fill(0, edges[edges < flat.numel()], True)
    return (flat.cumsum(0) - 1).view(batch, length)


def plan_rows(
    shape: torch.Size,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    cu_seqlens: Tensor | None,
    device: torch.device,
) -> RowPlan:
    """Rows for what is kept; `cu_seqlens` counts tokens of the flattened batch."""
    if document_ids is None and cu_seqlens is None:
        document = torch.arange(shape[0], device=device)[:, None].expand(*shape).flatten()
    else:
        document = segments(shape, document_ids, cu_seqlens, device).flatten()
    kept = torch.ones_like(document, dtype=torch.bool)
    if attention_mask is not None:
        kept = attention_mask.to(device).flatten() != 0
    source = kept.nonzero().squeeze(1)
    _, row, counts = document[source].unique_consecutive(return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    column = torch.arange(len(source), device=device) - first[row]
    return RowPlan(row, column, source, len(counts), int(counts.max()) if len(counts) else 0)
