"""Slow or growing for a good reason: nothing here may be reported."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax
from torch.utils.checkpoint import checkpoint

from .host import DIM, Host, hosting

CHUNK = 16


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(DIM, DIM, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(DIM, DIM)
        self.skip = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs, skips = None, [], []
        for token in x.unbind(1):
            state = self.cell(token, state)
            outputs.append(state[0])
            skips.append(self.skip(token))
        return torch.stack(outputs, 1) + torch.stack(skips, 1)


def _linear_attention(x: Tensor) -> Tensor:
    memory, outputs = x.new_zeros(x.shape[0], DIM, DIM), []
    for token in range(x.shape[1]):
        key, value = x[:, token].sigmoid(), x[:, token].tanh()
        memory = memory + key[:, :, None] * value[:, None]
        outputs.append((x[:, token, None] @ memory)[:, 0])
    return torch.stack(outputs, 1)


def _decay_in_place(x: Tensor) -> Tensor:
    states = torch.zeros_like(x)
    with torch.no_grad():
        states[:, 0] = x[:, 0]
        for token in range(1, x.shape[1]):
            states[:, token] = states[:, token - 1] * 0.9 + x[:, token] * 0.1
    return x + states


def _heads_in_a_recurrence(x: Tensor) -> Tensor:
    states, outputs = [x.new_zeros(x.shape[0], 4) for _ in range(4)], []
    for token in x.unbind(1):
        for head in range(4):
            states[head] = states[head] * 0.5 + token[:, 4 * head : 4 * head + 4]
        outputs.append(torch.cat(states, -1))
    return torch.stack(outputs, 1)


def _chunked(x: Tensor) -> Tensor:
    outputs = []
    for start in range(0, x.shape[1], CHUNK):
        past, rows = x[:, : start + CHUNK], x[:, start : start + CHUNK]
        scores = rows @ past.mT
        hidden = torch.ones(scores.shape[1:]).triu(past.shape[1] - rows.shape[1] + 1).bool()
        outputs.append(softmax(scores.masked_fill(hidden, -1e9), -1) @ past)
    return torch.cat(outputs, 1)


def _chunked_scan(x: Tensor) -> Tensor:
    state, outputs = torch.zeros_like(x[:, :1]), []
    for part in x.split(CHUNK, 1):
        sums = state + part.cumsum(1)
        state = sums[:, -1:]
        outputs.append(sums)
    return torch.cat(outputs, 1)


def _dense(x: Tensor) -> Tensor:
    return softmax((x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e9), -1) @ x


def _fused(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
    return scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


class _Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return self.layer(x, x, x, attn_mask=mask, need_weights=True)[0]


class _Experts(nn.Module):
    """Each expert takes the tokens that are its own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, number)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights = self.router(flat).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            own = (chosen == number).nonzero()[:, 0]
            if own.numel():
                out = out.index_add(0, own, expert(flat[own]) * weights[own, number, None])
                if bool(own.max() < 0):
                    break
        return out.view_as(x)


class _Rope(nn.Module):
    """Its table grows to the longest length seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1])[:, None].to(x).cos()
        return x * self.table[: x.shape[1]].to(x)


class _LastFew(nn.Module):
    """Keeps what the last steps did, and no more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        self.kept = [*self.kept, x.detach().clone()][-self.number :]
        return x * 1


class _RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().float().mean((0, 1)).to(self.mean), 0.1)
        return x - self.mean.to(x)


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(hosting(_chunked)() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


def lstm() -> nn.Module:
    return Host(_Recurrent(nn.LSTM))


def gru() -> nn.Module:
    return Host(_Recurrent(nn.GRU))


def cell() -> nn.Module:
    return Host(_Cell())


def torchs() -> nn.Module:
    return Host(_Torchs())


def experts() -> nn.Module:
    return Host(_Experts(4))


def many_experts() -> nn.Module:
    return Host(_Experts(64))


def rope() -> nn.Module:
    return Host(_Rope())


def last_few() -> nn.Module:
    return Host(_LastFew(20))


def running_mean() -> nn.Module:
    return Host(_RunningMean())


linear_attention = hosting(_linear_attention)
decay_in_place = hosting(_decay_in_place)
heads_in_a_recurrence = hosting(_heads_in_a_recurrence)
chunked = hosting(_chunked)
chunked_scan = hosting(_chunked_scan)
dense = hosting(_dense)
fused = hosting(_fused)
checkpointed = _Checkpointed
HEALTHY = (
    *("lstm", "gru", "cell", "linear_attention", "decay_in_place", "heads_in_a_recurrence", "chunked"),
    *("chunked_scan", "dense", "fused", "torchs", "experts", "many_experts", "rope", "last_few", "running_mean"),
    "checkpointed",
)
