"""Models in half precision, or with half precision inside, that keep too little of what they add up."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting


def _running_mean(x: Tensor) -> Tensor:
    total, means = torch.zeros_like(x[:, 0]), []
    for count, token in enumerate(x.abs().unbind(1), start=1):
        total = total + token
        means.append(total / count)
    return torch.stack(means, dim=1)


def _running_mean_inside(x: Tensor) -> Tensor:
    return _running_mean(x.bfloat16()).to(x.dtype)


def _mean_added_up_in_half(x: Tensor) -> Tensor:
    return x + x.sum(1, keepdim=True, dtype=torch.bfloat16) / x.shape[1]  # here


def _mean_added_up_in_a_half_buffer(x: Tensor) -> Tensor:
    total = torch.zeros(x[:, 0].shape, dtype=torch.bfloat16)
    for token in x.unbind(1):
        total += token  # here
    return x + total[:, None] / x.shape[1]


def _softmax_in_half(x: Tensor) -> Tensor:
    scores = (x @ x.mT / DIM**0.5).masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -1e9)
    return scores.softmax(-1, dtype=torch.bfloat16).to(x.dtype) @ x  # here


def _masked_in_half(x: Tensor) -> Tensor:
    scores = (x @ x.mT / DIM**0.5).bfloat16()  # here
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -1e9).softmax(-1).to(x.dtype) @ x


def _denominator_key_by_key(x: Tensor) -> Tensor:
    weights = (x @ x.mT / DIM**0.5).clamp(-4, 4).exp()
    weights = weights.tril()
    total = torch.zeros_like(weights[..., 0])
    for column in weights.unbind(-1):
        total = total + column
    return weights @ x / total[..., None]


def _variance_by_difference(x: Tensor) -> Tensor:
    variance = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
    return (x - x.mean(-1, keepdim=True)) * (variance.clamp(min=0) + 1e-5).rsqrt()


class _Bare(nn.Module):
    """The part under test alone, with its gain: nothing before it takes an offset away."""

    def __init__(self, function) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.gain


def _fused(x: Tensor) -> Tensor:
    q = x[:, None]
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]


def _written_out(x: Tensor) -> Tensor:
    scores = x @ x.mT / DIM**0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return softmax(scores.masked_fill(hidden, float("-inf")), -1) @ x


def _in_half_by_design(x: Tensor) -> Tensor:
    return _written_out(x.bfloat16()).to(x.dtype)


def running_mean() -> nn.Module:
    return hosting(_running_mean)().bfloat16()


def denominator() -> nn.Module:
    return hosting(_denominator_key_by_key)().bfloat16()


def variance() -> nn.Module:
    return _Bare(_variance_by_difference)


def variance_in_half() -> nn.Module:
    return _Bare(_variance_by_difference).half()


def fused() -> nn.Module:
    return hosting(_fused)().bfloat16()


def written_out() -> nn.Module:
    return hosting(_written_out)().bfloat16()


def normed() -> nn.Module:
    return Host(nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.SiLU())).half()


def recurrent() -> nn.Module:
    return Host(_Recurrent()).bfloat16()


class _Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.vmap(self.linear))(x)


def mapped() -> nn.Module:
    return Host(_Mapped())


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = 0.9 * state + 0.1 * torch.tanh(self.step(state) + token)
            states.append(state)
        return torch.stack(states, dim=1)


running_mean_inside = hosting(_running_mean_inside)
mean_added_up_in_half = hosting(_mean_added_up_in_half)
mean_added_up_in_a_half_buffer = hosting(_mean_added_up_in_a_half_buffer)
softmax_in_half = hosting(_softmax_in_half)
masked_in_half = hosting(_masked_in_half)


def softmax_in_float32() -> nn.Module:
    """A softmax in float32, whatever the module is in."""
    return hosting(lambda x: softmax(x @ x.mT / DIM, -1, dtype=torch.float32).to(x.dtype) @ x)().double()


in_half_by_design = hosting(_in_half_by_design)
