"""Where the tokens of a call lie: in which document, at which position, in which block."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Queries of a call, C of them from index `offset` of their row on, and the blocks of all tokens so far.

    Blocks are cut from each document by itself, and numbered through the row; a document's last one may be short.

    Args:
        offset: Tokens of the row before the first query.
        position: Place in its document of each query, [B, C].
        start: Index in the row of its document's first token, [B, C].
        segment: Number of its block, [B, C].
        first: Number of its document's first block, [B, C].
        place: Index in the row of each block's tokens, [B, N, block]; -1 where a short block has none.
    """

    offset: int
    position: Tensor
    start: Tensor
    segment: Tensor
    first: Tensor
    place: Tensor

    @property
    def index(self) -> Tensor:
        """Index in the row of each query, [C]."""
        count = self.position.shape[1]
        return torch.arange(self.offset, self.offset + count, device=self.position.device)

    def part(self, start: int, end: int) -> "Layout":
        """The layout of some of the queries."""
        cut = [item[:, start:end] for item in (self.position, self.start, self.segment, self.first)]
        return Layout(self.offset + start, *cut, self.place)


def plain_layout(batch: int, offset: int, count: int, block: int, device: torch.device) -> Layout:
    """Rows of one document each, `offset` tokens of which came before."""
    position = torch.arange(offset, offset + count, device=device).expand(batch, -1)
    zeros = torch.zeros_like(position)
    blocks = -(-(offset + count) // block)
    place = torch.arange(blocks * block, device=device).view(blocks, block).expand(batch, -1, -1)
    return Layout(offset, position, zeros, position // block, zeros, place)


def packed_layout(document_ids: Tensor, block: int) -> Layout:
    """Rows of several documents: a document is a run of equal ids, [B, S]."""
    index = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    fresh = torch.ones_like(document_ids, dtype=torch.bool)
    fresh[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    start = torch.where(fresh, index, 0).cummax(1).values
    position = index - start
    segment = (position % block == 0).cumsum(1) - 1
    blocks = int(segment.max()) + 1
    place = index.new_full((index.shape[0], blocks * block), -1)
    place = place.scatter(1, segment * block + position % block, index)
    return Layout(0, position, start, segment, segment.gather(1, start), place.unflatten(1, (blocks, block)))


@dataclass(frozen=True)
class Compaction:
    """An order in which a row's tokens come first and its padding last, and the way back.

    Args:
        order: Index of the token that goes to each place, [B, S].
        back: Place to which each token goes, [B, S].
        kept: Whether a token is one, [B, S].
    """

    order: Tensor
    back: Tensor
    kept: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor) -> "Compaction":
        """The order for a mask that is true, or not zero, at tokens."""
        kept = attention_mask.bool()
        order = (~kept).long().argsort(dim=1, stable=True)
        return cls(order, order.argsort(dim=1), kept)

    def documents(self, document_ids: Tensor | None) -> Tensor:
        """Ids of documents in the new order, [B, S]; all padding is a document of its own."""
        if document_ids is None:
            return (~self.kept).long().gather(1, self.order)
        ids, kept = document_ids.gather(1, self.order), self.kept.gather(1, self.order)
        runs = torch.zeros_like(ids)
        runs[:, 1:] = (ids[:, 1:] != ids[:, :-1]).long().cumsum(1)
        return runs.masked_fill(~kept, -1)
