"""Right, and far too slow: waits, loops over tokens, memory and time that grow too fast or never stop growing."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, hosting

BLOCK = 8


def _token_in_its_past(x: Tensor, token: int) -> Tensor:
    past = x[:, : token + 1]
    return softmax(x[:, token : token + 1] @ past.mT, -1) @ past


def _reads_each_range(x: Tensor) -> Tensor:
    starts = torch.arange(x.shape[1]) // 2
    out = torch.zeros_like(x)
    for token in range(x.shape[1]):
        start = starts[token].item()  # here
        past = x[:, int(start) : token + 1]
        out[:, token] = (softmax(x[:, token : token + 1] @ past.mT, -1) @ past)[:, 0]
    return out


def _unique_per_token(x: Tensor) -> Tensor:
    scores = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), 0.0)
    kept = []
    for token in range(x.shape[1]):
        blocks = scores[0, token].topk(min(4, x.shape[1])).indices // BLOCK
        blocks = torch.unique(blocks, sorted=True)  # here
        kept.append(x[:, : token + 1].mean(1) + 0.0 * blocks.sum())
    return torch.stack(kept, 1)


def _listed_ranges(x: Tensor) -> Tensor:
    ends = torch.arange(x.shape[1]) + 1
    rows = [x[:, : end.tolist()].mean(1) for end in ends]  # here
    return torch.stack(rows, 1)


def _sum_of_one_hots(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for token in range(x.shape[1]):
        place = (torch.arange(x.shape[1]) == token).to(x)[None, :, None]
        out = out + place * _token_in_its_past(x, token)
    return out


def _token_by_token(x: Tensor) -> Tensor:
    return torch.cat([_token_in_its_past(x, token) for token in range(x.shape[1])], 1)


def _every_pair(x: Tensor) -> Tensor:
    rows = []
    for token in range(x.shape[1]):
        peak, total, mixed = x.new_full((1,), -1e9), x.new_zeros(1), torch.zeros_like(x[:, 0])
        for other in range(token + 1):
            score = (x[:, token] * x[:, other]).sum(-1)
            higher = torch.maximum(peak, score)
            mixed = mixed * (peak - higher).exp() + (score - higher).exp() * x[:, other]
            total = total * (peak - higher).exp() + (score - higher).exp()
            peak = higher
        rows.append(mixed / total)
    return torch.stack(rows, 1)


class _LoopInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in grad.unbind(1)], 1)  # here


class _LoopAfterRecurrence(nn.Module):
    """A recurrence, which must go step by step, and a loop over tokens, which need not."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(DIM, DIM)
        self.mixer = hosting(_token_by_token)()

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.cell(token, state)
            states.append(state)
        return self.mixer(torch.stack(states, 1))


reads_each_range = hosting(_reads_each_range)
unique_per_token = hosting(_unique_per_token)
listed_ranges = hosting(_listed_ranges)
sum_of_one_hots = hosting(_sum_of_one_hots)
token_by_token = hosting(_token_by_token)
every_pair = hosting(_every_pair)
loop_in_backward = hosting(_LoopInBackward.apply)
loop_after_recurrence = _LoopAfterRecurrence
