"""The line of a mask, a choice or a fetch that shows a token what it must not see, marked here, is the one named."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.checks.fwd import fwd201_future_changes_output, fwd306_packed_differs_from_separate
from nsa_doctor.subject.contract import Subject

WIDTH, BLOCK = 8, 4


def seen_blocks(at: Tensor) -> Tensor:
    """How many blocks each token sees: those that end before it."""
    return torch.div(at + BLOCK - 1, BLOCK, rounding_mode="floor")  # limit


def attend(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    hidden = (q @ k.transpose(-1, -2)).masked_fill(~visible, torch.finfo(q.dtype).min)
    return hidden.softmax(-1).masked_fill(~visible, 0.0) @ k


def by_block(x: Tensor) -> Tensor:
    """Means of blocks, of which one is seen too early."""
    whole = x[:, : x.shape[1] // BLOCK * BLOCK].unflatten(1, (-1, BLOCK)).mean(2)
    number = torch.arange(whole.shape[1])
    return attend(x, whole, number < seen_blocks(torch.arange(x.shape[1]))[:, None])


def averaged(x: Tensor) -> Tensor:
    """Means of blocks that are seen once they end; queries before that see all of them alike."""
    whole = x[:, : x.shape[1] // BLOCK * BLOCK].unflatten(1, (-1, BLOCK)).mean(2)
    hidden = torch.arange(x.shape[1])[:, None] < BLOCK * (torch.arange(whole.shape[1]) + 1) - 1
    scores = (x @ whole.transpose(-1, -2)).masked_fill(hidden, -1e4)  # averaged
    return scores.softmax(-1) @ whole


def with_sinks(x: Tensor) -> Tensor:
    """A mask joined of one of two sinks, seen at once, and one of all tokens."""
    at = torch.arange(x.shape[1])
    sinks, own = torch.arange(2)[None] <= at[:, None] + 1, at <= at[:, None]  # joined
    return attend(x, torch.cat((x[:, :2], x), 1), torch.cat((sinks, own), 1))


def undone(x: Tensor) -> Tensor:
    """A causal window in which `|` stands in place of `&`, so that nothing is hidden."""
    at = torch.arange(x.shape[1])
    near = at > at[:, None] - 2 * BLOCK
    visible = (at <= at[:, None]) | near  # undone
    return attend(x, x, visible)


def in_blocks(x: Tensor) -> Tensor:
    """Blocks of queries with the keys of the block before and their own; `&` stands where `|` would hide enough."""
    count = -(-x.shape[1] // BLOCK)
    padded = nn.functional.pad(x, (0, 0, 0, count * BLOCK - x.shape[1])).unflatten(1, (count, BLOCK))
    near = torch.cat((nn.functional.pad(padded, (0, 0, 0, 0, 1, 0))[:, :-1], padded), 2)
    at = torch.arange(count * BLOCK).view(1, count, BLOCK)
    keys = torch.cat((nn.functional.pad(at, (0, 0, 1, 0), value=-1)[:, :-1], at), 2)[:, :, None]
    hidden = at[..., None] < keys
    hidden = hidden & (keys < at[..., None] - BLOCK)  # in blocks
    return attend(padded, near, ~hidden).flatten(1, 2)[:, : x.shape[1]]


def by_choice(x: Tensor) -> Tensor:
    """Reads the two tokens that score highest, later ones among them."""
    scores = x @ x.transpose(-1, -2)
    chosen = scores.topk(min(2, x.shape[1]), -1).indices  # chosen
    return x + fetched(x, chosen).mean(2)


def fetched(x: Tensor, index: Tensor) -> Tensor:
    """Rows of tokens [B, S, D] by index [B, S, K]."""
    return x[torch.arange(len(x))[:, None, None], index]


def one_on(x: Tensor) -> Tensor:
    """Reads the token behind."""
    index = torch.arange(1, x.shape[1] + 1).clamp(max=x.shape[1] - 1)
    return x + fetched(x, index[None, :, None].expand(len(x), -1, 1))[:, :, 0]  # fetched


def over_queries(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    scores = (x @ x.transpose(-1, -2)).masked_fill(at > at[:, None], torch.finfo(x.dtype).min)
    return scores.softmax(1) @ x  # over queries


class Part(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.before, self.after, self.function = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor, *documents: Tensor) -> Tensor:
        return self.after(self.function(self.before(x), *documents))


def documents_of(offsets: Tensor, length: int) -> Tensor:
    """The number of each token's document; one of a single token counts as the one before it."""
    begins = torch.zeros(length, dtype=torch.long)
    begins[offsets[1:-1].long()] = 1
    begins[1:] = begins[1:] * (1 - begins[:-1])  # documents
    return begins.cumsum(0)


def packed(x: Tensor, *offsets: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    visible = at <= at[:, None]
    if offsets:
        document = documents_of(offsets[0], x.shape[1])
        visible = visible & (document == document[:, None])
    return attend(x, x, visible)


def subject(function: Callable[..., Tensor]) -> Subject:
    return Subject(
        name="masked",
        build=lambda seed: (torch.manual_seed(seed), Part(function))[1],
        forward=lambda module, x: module(x),
        packed=lambda module, x, offsets: module(x, offsets),
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )


@pytest.mark.parametrize(
    ("function", "mark"),
    [
        (by_block, "limit"),
        (averaged, "averaged"),
        (with_sinks, "joined"),
        (undone, "undone"),
        (in_blocks, "in blocks"),
        (by_choice, "chosen"),
        (one_on, "fetched"),
        (over_queries, "over queries"),
    ],
)
def test_what_shows_a_token_later_ones_is_named(function: Callable[..., Tensor], mark: str) -> None:
    found = next(iter(fwd201_future_changes_output.run(subject(function))))
    assert linecache.getline(found.where.file, found.where.line).rstrip().endswith(f"# {mark}"), found.where


def test_what_joins_documents_is_named() -> None:
    (found,) = fwd306_packed_differs_from_separate.run(subject(packed))
    lines = [linecache.getline(found.where.file, found.where.line + offset).rstrip() for offset in (-1, 0)]
    assert any(line.endswith("# documents") for line in lines), found.where
