"""Memory with the square of the length where nothing else grows so, and where something does; the line is marked."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .host import DIM, Host, hosting

WINDOW = 8


def _within(scores: Tensor, visible: Tensor, values: Tensor) -> Tensor:
    return scores.masked_fill(~visible, -1e9).softmax(-1) @ values


def _in_blocks(x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Blocks of queries [B, N, W, D], each with the block before it as keys [B, N, 2 W, D], and what was added."""
    added = -x.shape[1] % WINDOW
    blocks = F.pad(x, (0, 0, 0, added)).unflatten(1, (-1, WINDOW))
    before = F.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1]
    return blocks, torch.cat((before, blocks), 2), added


def _local(x: Tensor, visible: Tensor) -> Tensor:
    blocks, keys, _ = _in_blocks(x)
    return _within(blocks @ keys.mT, visible, keys).flatten(1, 2)[:, : x.shape[1]]


def _cut_from_all_pairs(x: Tensor) -> Tensor:
    size = x.shape[1] + -x.shape[1] % WINDOW
    key = torch.arange(-WINDOW, size)
    full = (torch.arange(size)[:, None] >= key) & (key >= 0)  # here
    starts = range(0, size, WINDOW)
    return _local(x, torch.stack([full[start : start + WINDOW, start : start + 2 * WINDOW] for start in starts]))


def _of_one_block(x: Tensor) -> Tensor:
    size = x.shape[1] + -x.shape[1] % WINDOW
    query = torch.arange(size).view(-1, WINDOW, 1)
    key = query[:, :1] - WINDOW + torch.arange(2 * WINDOW)
    return _local(x, (key <= query) & (key >= 0))


def _dense_with_a_mask(x: Tensor) -> Tensor:
    token = torch.arange(x.shape[1])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=token[:, None] >= token)


def _scores_on_one_line(x: Tensor) -> Tensor:
    token = torch.arange(x.shape[1])
    return (x @ x.mT).masked_fill(token[:, None] < token, -1e9).softmax(-1) @ x


class _InChunks(nn.Module):
    """Attention a chunk of queries at a time; `keep` says what of it is kept for a plot."""

    def __init__(self, keep: str = "") -> None:
        super().__init__()
        self.keep, self.weights, self.linear = keep, {}, nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        outputs, token = [], torch.arange(x.shape[1])
        for start in range(0, x.shape[1], WINDOW):
            query = x[:, start : start + WINDOW]
            hidden = token[start : start + WINDOW, None] < token
            weights = (self.linear(query) @ x.mT).masked_fill(hidden, -1e9).softmax(-1)
            if self.keep == "all":
                self.weights[start] = weights.detach()
            elif self.keep == "means":
                self.weights[start] = weights.detach().mean((0, 2))
            outputs.append(weights @ x)
        return torch.cat(outputs, 1)


class _AtOnce(nn.Module):
    """Attention of all pairs, which are there anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        self.weights = (x @ x.mT).masked_fill(hidden, -1e9).softmax(-1)
        return self.weights @ x


class _MaskByLength(nn.Module):
    """A scan that keeps a mask of all pairs, which no input has made."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = {}

    def forward(self, x: Tensor) -> Tensor:
        self.masks.setdefault(x.shape[1], torch.ones(x.shape[1], x.shape[1]).tril())
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


class _OfTorch(nn.Module):
    """All of attention in one call of torch's, and a mask of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]


cut_from_all_pairs = hosting(_cut_from_all_pairs)
of_one_block = hosting(_of_one_block)
dense_with_a_mask = hosting(_dense_with_a_mask)
scores_on_one_line = hosting(_scores_on_one_line)
of_torch = lambda: Host(_OfTorch())  # noqa: E731
all_weights_kept = lambda: Host(_InChunks("all"))  # noqa: E731
means_kept = lambda: Host(_InChunks("means"))  # noqa: E731
nothing_kept = lambda: Host(_InChunks())  # noqa: E731
at_once = lambda: Host(_AtOnce())  # noqa: E731
mask_by_length = lambda: Host(_MaskByLength())  # noqa: E731
