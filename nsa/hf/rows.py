"""Which tokens of a batch are computed together: rows of as many tokens, or sequences packed one behind the other.

A token that the attention_mask leaves out is left out of its row: the others count positions, blocks and windows as if
it were not there. So a row with padding, on whichever side, gives what it gives alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nsa.hf.cache import NSACacheLayer, Rows
from nsa.nn.rope import packed_positions
from nsa.types import CuSeqlens, Hidden


class Part(NamedTuple):
    """Some rows of a batch and, in each, as many tokens; places: where they lie in [B·T], None for the whole batch."""

    rows: Rows
    num_tokens: int
    places: Int[Tensor, " R_n"] | None

    def of(self, x: Hidden) -> Float[Tensor, "R n dim"]:
        """Its tokens of a batch."""
        if self.places is None:
            return x
        return x.flatten(0, 1).index_select(0, self.places).unflatten(0, (len(self.rows), self.num_tokens))


def joined(computed: Sequence[tuple[Part, Tensor]], like: Hidden) -> Hidden:
    """The batch that holds what was computed of each part [R, n, dim], and zeros where nothing was."""
    places = [part.places for part, _ in computed if part.places is not None]
    if not computed:
        return torch.zeros_like(like)
    if not places:
        return computed[0][1]
    flat = torch.cat([output.flatten(0, 1) for _, output in computed])
    num_rows, num_columns = like.shape[:2]
    whole = flat.new_zeros(num_rows * num_columns, flat.shape[1]).index_copy(0, torch.cat(places), flat)
    return whole.unflatten(0, (num_rows, num_columns))


def new_tokens(
    attention_mask: Tensor | None, num_rows: int, num_columns: int, past: NSACacheLayer | None
) -> Bool[Tensor, "B T"] | None:
    """Which of the new columns hold a token of each row; None where all do.

    Raises ValueError for a mask that is not [B, past + T] of zeros and ones, or contradicts what the cache holds.
    """
    if attention_mask is None:
        return None
    num_past = 0 if past is None else past.num_columns
    expected = [num_rows, num_past + num_columns]
    if list(attention_mask.shape) != expected:
        raise ValueError(
            f"attention_mask must have shape {expected}, a column for each of the {num_past} tokens before and the new "
            f"ones, got {list(attention_mask.shape)}"
        )
    is_token = attention_mask == 1
    is_whole = bool(is_token.all())
    if not is_whole and bool((~is_token & (attention_mask != 0)).any()):
        raise ValueError("attention_mask must hold zeros and ones alone, got other values")
    if past is not None and past.parts and (not is_whole or any(each != num_past for each in past.lengths())):
        marked = is_token[:, :num_past].sum(1).tolist()
        if marked != past.lengths():
            raise ValueError(
                f"attention_mask must mark the tokens that the cache holds, {past.lengths()}, got {marked}"
            )
    return None if is_whole or bool(is_token[:, num_past:].all()) else is_token[:, num_past:]


def parts_of(
    is_token: Bool[Tensor, "B T"] | None, past: NSACacheLayer | None, num_rows: int, num_columns: int, on: torch.device
) -> list[Part]:
    """Parts of the batch whose rows have as many new tokens and as many before; those without any new one too."""
    held = [part.rows for part in past.parts] if past is not None and past.parts else [tuple(range(num_rows))]
    if is_token is None and held == [tuple(range(num_rows))]:
        return [Part(held[0], num_columns, None)]
    is_token = torch.ones(num_rows, num_columns, dtype=torch.bool, device=on) if is_token is None else is_token
    counts = is_token.sum(1).tolist()
    parts = []
    for rows in held:
        for count in sorted({counts[row] for row in rows}):
            chosen = tuple(row for row in rows if counts[row] == count)
            row_index = torch.tensor(chosen, device=on)
            row, column = is_token.index_select(0, row_index).nonzero(as_tuple=True)
            parts.append(Part(chosen, count, row_index[row] * num_columns + column))
    return parts


def one_row(is_token: Bool[Tensor, "B T"] | None, num_rows: int, num_columns: int, on: torch.device) -> Part:
    """All tokens of a batch, one behind the other."""
    if is_token is None:
        return Part((0,), num_rows * num_columns, torch.arange(num_rows * num_columns, device=on))
    places = is_token.flatten().nonzero()[:, 0]
    return Part((0,), places.shape[0], places)


def num_whole_columns(is_token: Bool[Tensor, "B T"] | None, num_columns: int) -> int:
    """How many of the newest columns hold a token of every row."""
    if is_token is None:
        return num_columns
    return int(is_token.all(0).flip(0).long().cumprod(0).sum())


def sequences(
    position_ids: Tensor | None,
    cu_seqlens: CuSeqlens | None,
    is_token: Bool[Tensor, "B T"] | None,
    past: NSACacheLayer | None,
    shape: tuple[int, int],
) -> CuSeqlens | None:
    """Where each sequence starts among all tokens of the batch, and their number; None where every row is one.

    Raises ValueError for positions that neither count the tokens of each row, those of the past included, nor, in a
    batch without a past, those of sequences in it: the layers count positions by themselves.
    """
    if cu_seqlens is not None:
        if shape[0] != 1 or past is not None or is_token is not None:
            raise ValueError("cu_seq_lens_q must come with one row, without padding and without a cache")
        positions = packed_positions(cu_seqlens.long(), shape[1])[None]
        if position_ids is not None and not torch.equal(position_ids.expand(1, -1), positions.to(position_ids.device)):
            raise ValueError("position_ids must count the tokens of each sequence that cu_seq_lens_q marks")
        return cu_seqlens.to(torch.int32)
    if position_ids is None:
        return None
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, shape[0]) or position_ids.shape[1] != shape[1]:
        raise ValueError(f"position_ids must have shape {list(shape)}, got {list(position_ids.shape)}")
    given = position_ids.expand(*shape)
    is_token = torch.ones_like(given, dtype=torch.bool) if is_token is None else is_token
    before = torch.tensor(past.lengths() if past is not None and past.parts else [0] * shape[0], device=given.device)
    counted = before[:, None] + is_token.long().cumsum(1) - 1
    if bool(((given == counted) | ~is_token).all()):
        return None
    return _packed(given, is_token, past)


def _packed(given: Tensor, is_token: Tensor, past: NSACacheLayer | None) -> CuSeqlens:
    positions, row = given[is_token], is_token.nonzero()[:, 0]
    follows = (positions[1:] == positions[:-1] + 1) & (row[1:] == row[:-1])
    is_right = (positions == 0) | torch.cat((torch.zeros_like(follows[:1]), follows))
    if not bool(is_right.all()) or (past is not None and past.num_columns):
        raise ValueError(
            "position_ids must count the tokens of each row, those in the cache included and padding not, or begin at "
            "0 for each of several sequences without a cache: the layers count positions by themselves"
        )
    ends = torch.tensor([positions.shape[0]], device=positions.device)
    return torch.cat((positions.eq(0).nonzero()[:, 0], ends)).to(torch.int32)
