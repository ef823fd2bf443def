"""Where blocks start, who may see whom, and slots <-> ranges <-> masks: integers only.

A sequence of S tokens carries two block grids (arXiv 2502.11089, section 3.3). Compressed block i covers tokens
[i·d, i·d + l) and exists only when complete. Selection block j covers [j·l_sel, (j + 1)·l_sel) and the last one may be
partial. A query's *slots* are the indices of its chosen selection blocks: ascending, then −1 for empty ones.
Nothing here depends on a device, a dtype or a model: every implementation of every branch reads these rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

EMPTY_SLOT = -1
NUM_FORCED = 3  # block 0 and the two most recent blocks


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Block sizes of one attention layer, checked on construction.

    l, d: length and stride of compressed blocks, in tokens. l_sel: length of selection blocks, in tokens.
    n_sel: slots per query, forced blocks included. w: sliding window in tokens, the query's own token included.
    Raises ValueError for a geometry the equations do not define.
    """

    l: int = 32  # noqa: E741 (the paper's letter)
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512

    def __post_init__(self) -> None:
        for name in ("l", "d", "l_sel", "n_sel", "w"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.l % self.d:
            raise ValueError(f"l must be a multiple of d={self.d}, got {self.l}")
        if self.l_sel % self.d:
            raise ValueError(f"l_sel must be a multiple of d={self.d}, got {self.l_sel}")
        if self.l > self.l_sel:
            raise ValueError(f"l must be at most l_sel={self.l_sel}, got {self.l}")
        if self.n_sel < NUM_FORCED:
            raise ValueError(f"n_sel must be at least {NUM_FORCED} (block 0 and 2 local ones), got {self.n_sel}")

    def num_compressed(self, num_tokens: int) -> int:
        """Complete compressed blocks in `num_tokens` tokens; also what query t = num_tokens − 1 may see."""
        return max(0, (num_tokens - self.l) // self.d + 1)

    def compressed_range(self, block: int) -> tuple[int, int]:
        """Tokens [start, end) that compressed block `block` summarises."""
        return block * self.d, block * self.d + self.l

    def num_blocks(self, num_tokens: int) -> int:
        """Selection blocks, a partial last one included."""
        return -(-num_tokens // self.l_sel)

    def num_dense(self, first_query: int, num_queries: int) -> int:
        """How many of the queries `first_query`, `first_query` + 1 … stand in the first n_sel blocks.

        These choose every block they see: they attend to all tokens up to themselves.
        """
        return min(max(self.n_sel * self.l_sel - first_query, 0), num_queries)

    def block_range(self, block: int, num_tokens: int) -> tuple[int, int]:
        """Tokens [start, end) of selection block `block`, cut at the end of the sequence."""
        return block * self.l_sel, min((block + 1) * self.l_sel, num_tokens)

    def window_range(self, query: int) -> tuple[int, int]:
        """Tokens [start, end) in the sliding window of token `query`: at most w, `query` included."""
        return max(0, query - self.w + 1), query + 1

    def forced_blocks(self, query: int) -> tuple[int, ...]:
        """Blocks every choice of token `query` must hold: block 0 and the two most recent, counted once, ascending."""
        current = query // self.l_sel
        return tuple(sorted({0, max(0, current - 1), current}))

    def overlap(self, compressed: int, block: int) -> int:
        """How many strides of d tokens compressed block and selection block share (Eq. 9's number of terms)."""
        strides_per_block = self.l_sel // self.d
        first = max(compressed, block * strides_per_block)
        last = min(compressed + self.l // self.d, (block + 1) * strides_per_block)
        return max(0, last - first)

    def num_reads(self, query: int, slots: Iterable[int]) -> "Reads":
        """Keys one decoding step for token `query` must read, per layer, row and group.

        A slot given twice is read once; of a block after `query` nothing is read.
        """
        starts = {slot * self.l_sel for slot in slots if slot != EMPTY_SLOT}
        return Reads(
            compressed=self.num_compressed(query + 1),
            selected=sum(max(0, min(self.l_sel, query + 1 - start)) for start in starts),
            sliding=min(self.w, query + 1),
        )

    def change_lengths(self, max_length: int) -> list[int]:
        """Every length up to `max_length` at which the geometry changes, ascending.

        A compressed block completes (l + k·d), a selection block fills (k·l_sel) or opens (k·l_sel + 1), the window
        is full (w) or slides (w + 1), and choosing begins (n_sel·l_sel + 1: more blocks than slots).
        """
        completes = range(self.l, max_length + 1, self.d)
        fills = range(self.l_sel, max_length + 1, self.l_sel)
        opens = range(1, max_length + 1, self.l_sel)
        single = {self.w, self.w + 1, self.n_sel * self.l_sel, self.n_sel * self.l_sel + 1}
        return sorted({*completes, *fills, *opens, *(length for length in single if length <= max_length)})


@dataclass(frozen=True)
class Reads:
    """Keys read by one decoding step, per branch."""

    compressed: int
    selected: int
    sliding: int


def every_block(
    num_rows: int, queries: range, num_groups: int, geometry: Geometry, device: torch.device
) -> Int[Tensor, "rows queries groups n"]:
    """Slots of queries that choose every block they see, as those in the first n_sel blocks do."""
    block = torch.arange(geometry.n_sel, device=device)
    current = torch.arange(queries.start, queries.stop, device=device)[:, None] // geometry.l_sel
    slots = torch.where(block <= current, block, EMPTY_SLOT)
    return slots[:, None].expand(num_rows, -1, num_groups, -1).contiguous()


def slots_to_mask(
    slots: Int[Tensor, "*lead n"], num_tokens: int, geometry: Geometry
) -> Bool[Tensor, "*lead num_tokens"]:
    """Tokens the slots cover, whole blocks cut at `num_tokens`; causality is the caller's.

    Raises ValueError for a slot that is neither −1 nor a block.
    """
    slots, num_blocks = slots.long(), geometry.num_blocks(num_tokens)
    bad = (slots < EMPTY_SLOT) | (slots >= num_blocks)
    if bool(bad.any()):
        raise ValueError(f"slots must be {EMPTY_SLOT} or in [0, {num_blocks}), got {slots[bad][0]}")
    # One column more than there are blocks, so that an empty slot has somewhere harmless to point.
    chosen = torch.zeros(*slots.shape[:-1], num_blocks + 1, dtype=torch.bool, device=slots.device)
    target = torch.where(slots == EMPTY_SLOT, num_blocks, slots)
    chosen = chosen.scatter(-1, target, torch.ones_like(target, dtype=torch.bool))
    return chosen[..., :num_blocks].repeat_interleave(geometry.l_sel, dim=-1)[..., :num_tokens]


def mask_to_slots(mask: Bool[Tensor, "*lead num_tokens"], num_slots: int, geometry: Geometry) -> Int[Tensor, "*lead n"]:
    """Slots of a mask made of whole blocks: ascending, −1 for empty ones.

    Raises ValueError when a block is covered in part or more than `num_slots` blocks are covered.
    """
    num_tokens = mask.shape[-1]
    num_blocks = geometry.num_blocks(num_tokens)
    first = torch.arange(num_blocks, device=mask.device) * geometry.l_sel
    chosen = mask[..., first]
    whole = chosen.repeat_interleave(geometry.l_sel, dim=-1)[..., :num_tokens]
    if not torch.equal(whole, mask):
        raise ValueError(f"mask must cover whole blocks of {geometry.l_sel} tokens")
    count = int(chosen.sum(-1).max()) if chosen.numel() else 0
    if count > num_slots:
        raise ValueError(f"mask must cover at most num_slots={num_slots} blocks, got {count}")
    index = torch.arange(num_blocks, device=mask.device)
    ordered = torch.where(chosen, index, num_blocks).sort(-1).values[..., :num_slots]
    slots = torch.where(ordered == num_blocks, EMPTY_SLOT, ordered)
    return torch.nn.functional.pad(slots, (0, num_slots - slots.shape[-1]), value=EMPTY_SLOT)


def slots_to_ranges(slots: Int[Tensor, "*lead n"], num_tokens: int, geometry: Geometry) -> Int[Tensor, "*lead n 2"]:
    """Token ranges [start, end) of the slots, neighbours merged, ascending; unused rows are (0, 0) and last."""
    return mask_to_ranges(slots_to_mask(slots, num_tokens, geometry), slots.shape[-1])


def ranges_to_slots(
    ranges: Int[Tensor, "*lead m 2"], num_tokens: int, num_slots: int, geometry: Geometry
) -> Int[Tensor, "*lead n"]:
    """Slots whose blocks the ranges cover; raises ValueError as `ranges_to_mask` and `mask_to_slots` do."""
    return mask_to_slots(ranges_to_mask(ranges, num_tokens), num_slots, geometry)


def ranges_to_mask(ranges: Int[Tensor, "*lead m 2"], num_tokens: int) -> Bool[Tensor, "*lead num_tokens"]:
    """Tokens inside any range [start, end); (x, x) is empty. Reads `ranges`, never writes it.

    Raises ValueError for a range outside [0, num_tokens] or one that ends before it starts: clamping would hide the
    bug that made it.
    """
    ranges = ranges.long()
    start, end = ranges[..., 0], ranges[..., 1]
    bad = (start < 0) | (end > num_tokens) | (end < start)
    if bool(bad.any()):
        first = ranges[bad][0].tolist()
        raise ValueError(f"ranges must satisfy 0 <= start <= end <= {num_tokens}, got {first}")
    edges = torch.zeros(*ranges.shape[:-2], num_tokens + 1, dtype=torch.int64, device=ranges.device)
    one = torch.ones_like(start)
    edges = edges.scatter_add(-1, start, one).scatter_add(-1, end, -one)
    return edges.cumsum(-1)[..., :num_tokens] > 0


def mask_to_ranges(mask: Bool[Tensor, "*lead num_tokens"], num_ranges: int) -> Int[Tensor, "*lead m 2"]:
    """Maximal runs [start, end) of a mask, ascending; unused rows are (0, 0) and last.

    Raises ValueError when the mask has more than `num_ranges` runs.
    """
    padded = torch.nn.functional.pad(mask, (1, 1))
    starts = padded[..., 1:] & ~padded[..., :-1]  # [*lead, num_tokens + 1]
    ends = ~padded[..., 1:] & padded[..., :-1]
    count = int(starts.sum(-1).max()) if starts.numel() else 0
    if count > num_ranges:
        raise ValueError(f"mask must have at most num_ranges={num_ranges} runs, got {count}")
    position = torch.arange(mask.shape[-1] + 1, device=mask.device)
    beyond = mask.shape[-1] + 1

    def first_positions(flags: Tensor) -> Tensor:
        ordered = torch.where(flags, position, beyond).sort(-1).values[..., :num_ranges]
        return torch.nn.functional.pad(ordered, (0, num_ranges - ordered.shape[-1]), value=beyond)

    ranges = torch.stack((first_positions(starts), first_positions(ends)), dim=-1)
    return torch.where(ranges == beyond, 0, ranges)
