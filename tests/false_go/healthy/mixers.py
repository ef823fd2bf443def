"""Healthy mixers that are no softmax attention: linear attention, scans, convolutions, recurrences, experts."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.false_go.healthy._parts import DIM, MLP, Attention, Block, Model


class LinearAttention(Attention):
    def mix(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        states = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        total = (q * k.cumsum(2)).sum(-1, keepdim=True)
        return torch.einsum("bhsd,bhsde->bhse", q, states) / total


def linear_attention():
    return Block(LinearAttention())


class Retention(Attention):
    def mix(self, q, k, v):
        at = torch.arange(q.shape[2], device=q.device)
        apart = (at[:, None] - at).clamp(min=0)
        return (super().scores(q, k) * (0.9**apart).to(q.dtype).tril()) @ v


def retention():
    return Block(Retention())


class Receptance(nn.Module):
    """Of the RWKV kind: exponential decay per channel, the running maximum taken out, step by step."""

    def __init__(self):
        super().__init__()
        self.r, self.k, self.v = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.decay, self.first = nn.Parameter(torch.linspace(-3, 0, DIM)), nn.Parameter(torch.zeros(DIM))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        k, v, w = self.k(x), self.v(x), -self.decay.exp()
        top, total, peak = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e4)
        rows = []
        for t in range(x.shape[1]):
            high = torch.maximum(peak, self.first + k[:, t])
            a, b = (peak - high).exp(), (self.first + k[:, t] - high).exp()
            rows.append((a * top + b * v[:, t]) / (a * total + b))
            high = torch.maximum(peak + w, k[:, t])
            a, b = (peak + w - high).exp(), (k[:, t] - high).exp()
            top, total, peak = a * top + b * v[:, t], a * total + b, high
        return self.out(torch.sigmoid(self.r(x)) * torch.stack(rows, 1))


def receptance():
    return Block(Receptance())


class StateSpace(nn.Module):
    """A diagonal state-space model, as a convolution with its kernel by FFT."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-2, 1, DIM))
        self.into, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        S, wide = x.shape[1], torch.promote_types(x.dtype, torch.float32)
        kernel = (-F.softplus(self.rate.to(wide)) * torch.arange(S, device=x.device, dtype=wide)[:, None]).exp()
        u = torch.fft.rfft(self.into(x).to(wide), n=2 * S, dim=1)
        y = torch.fft.irfft(u * torch.fft.rfft(kernel, n=2 * S, dim=0), n=2 * S, dim=1)[:, :S]
        return self.out(y.to(x.dtype))


def state_space_by_fft():
    return Block(StateSpace())


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.rate, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        state, rows = torch.zeros_like(x[:, 0]), []
        decay, u = torch.sigmoid(self.rate(x)), self.into(x)
        for a, b in zip(decay.unbind(1), u.unbind(1), strict=True):
            state = a * state + (1 - a) * b
            rows.append(state)
        return self.out(torch.stack(rows, 1))


def scan_in_python():
    return Block(Scan())


class Hyena(nn.Module):
    """A long convolution whose filter a small network makes of the position, between two gates."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(DIM, 3 * DIM)
        self.filter = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, DIM))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        S = x.shape[1]
        t = torch.arange(S, device=x.device, dtype=x.dtype)[:, None] / 256
        kernel = self.filter(torch.cat([t, t.sin(), t.cos()], -1)) * (-4 * t).exp()
        a, b, v = self.into(x).chunk(3, -1)
        u = F.pad((b * v).transpose(1, 2), (S - 1, 0)).reshape(1, -1, 2 * S - 1)
        weight = kernel.T.flip(-1).unsqueeze(1).repeat(x.shape[0], 1, 1)
        y = F.conv1d(u, weight, groups=u.shape[1]).view(x.shape[0], DIM, S).transpose(1, 2)
        return self.out(a * y)


def long_convolution():
    return Block(Hyena())


class ShortConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 4, groups=4, padding=3)

    def forward(self, x):
        return self.conv(x.mT)[..., : x.shape[1]].mT


def padded_convolution_cut():
    return Block(ShortConvolution())


class TokenShift(nn.Module):
    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.full((DIM,), 0.5))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.out(torch.lerp(x, F.pad(x, (0, 0, 1, -1)), self.share.to(x.dtype)))


def token_shift():
    return Block(TokenShift())


def convolution_then_attention():
    return Block(nn.Sequential(ShortConvolution(), Attention()))


class CumulativeMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        seen = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.out(x.cumsum(1) / seen)


def cumulative_mean():
    return Block(CumulativeMean())


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = kind(DIM, DIM, batch_first=True)

    def forward(self, x):
        self.inner.flatten_parameters()
        return self.inner(x)[0]


def gru():
    return Block(Recurrent(nn.GRU))


def lstm():
    return Model(Block(Recurrent(nn.LSTM)))


class Experts(nn.Module):
    """The two likeliest of four experts for each token, weighted."""

    def __init__(self, used=2):
        super().__init__()
        self.used = used
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList([MLP() for _ in range(4)])

    def forward(self, x):
        chances, which = self.router(x).softmax(-1).topk(self.used, dim=-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (chances * (which == index)).sum(-1, keepdim=True)
            chosen = share.squeeze(-1) > 0
            if chosen.any():
                out[chosen] = out[chosen] + share[chosen] * expert(x[chosen])
        return out


def mixture_of_experts():
    return Block(mlp=Experts())


class Depths(nn.Module):
    """Tokens whose own score is positive pass through the MLP; the others are left as they are."""

    def __init__(self):
        super().__init__()
        self.router, self.mlp = nn.Linear(DIM, 1), MLP()

    def forward(self, x):
        score = self.router(x)
        return torch.sigmoid(score) * torch.where(score > 0, self.mlp(x), torch.zeros_like(x))


def mixture_of_depths():
    return Block(mlp=Depths())


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(DIM, 24), nn.Linear(DIM, 24), nn.Linear(24, DIM)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def gated_units():
    return Block(mlp=Squeezed())
