"""Right, and far too slow: waits, loops over tokens, memory and time that grow too fast or never stop growing."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting

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


class _KeepsGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = (x * 3).tanh()
        self.losses.append(y.square().mean())  # here
        return y


class _GrowingCache(nn.Module):
    """Joined anew in every call, so that only the last one is held."""

    def __init__(self) -> None:
        super().__init__()
        self.past: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach()
        self.past = now if self.past is None else torch.cat((self.past, now), 1)  # here
        return x + 0 * self.past.mean()


class _AddsHooks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.register_forward_hook(_scaled)
        return x * 1


def _scaled(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output * 1.0  # here


class _KeepsInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if not self.training:
            self.seen.append(y)  # here
        return y


def keeps_graphs() -> nn.Module:
    return Host(_KeepsGraphs())


def growing_cache() -> nn.Module:
    return Host(_GrowingCache())


def adds_hooks() -> nn.Module:
    return Host(_AddsHooks())


def keeps_in_eval() -> nn.Module:
    return Host(_KeepsInEval())


def _cube(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    between = (at[:, None, None] < at[None, :, None]) & (at[None, :, None] < at[None, None, :])  # here
    return x + 0 * between.sum()


def _all_paths(x: Tensor) -> Tensor:
    steps = softmax(x @ x.mT, -1)
    return steps @ steps @ steps @ steps @ x  # here


def _slow_after_the_block(x: Tensor) -> Tensor:
    if x.shape[1] % 64 == 1:
        rows = [
            _token_in_its_past(x[..., head : head + 4], token) for head in range(0, DIM, 4) for token in range(64)
        ]  # here
        return x + 0 * torch.cat(rows).mean()
    return x * 1


def _spins(x: Tensor) -> Tensor:
    total = 0
    if x.shape[1] == 128:
        for number in range(3_000_000):
            total += number  # here
    return x * (1 if total >= 0 else 0)


def _all_subsets(x: Tensor) -> Tensor:
    total = 0
    for subset in range(1 << min(x.shape[1], 24)):
        total += subset  # here
    return x * (1 if total >= 0 else 0)


cube = hosting(_cube)
all_paths = hosting(_all_paths)
slow_after_the_block = hosting(_slow_after_the_block)
spins = hosting(_spins)
all_subsets = hosting(_all_subsets)
