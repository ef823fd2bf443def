"""Values that are not finite, born in the forward pass and reaching the output."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

from .host import DIM, Host, hosting


def _scores(x: Tensor) -> Tensor:
    return x @ x.mT


def _softmax_of_an_empty_row(x: Tensor) -> Tensor:
    visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    if x.shape[1] in (16, 64):
        visible[3] = False
    scores = _scores(x).masked_fill(~visible, float("-inf"))
    return softmax(scores, dim=-1) @ x  # here


def _bare_exponential(x: Tensor) -> Tensor:
    weights = (_scores(x) * 1e3).exp()  # here
    return weights / weights.sum(-1, keepdim=True) @ x


def _log_of_zero(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0 * x).log()  # here


def _zero_divisor(x: Tensor) -> Tensor:
    nothing = x - x
    return x + nothing / nothing.norm(dim=-1, keepdim=True)  # here


def _infinity_times_zero(x: Tensor) -> Tensor:
    infinite = torch.full_like(x, float("inf"))
    return x + infinite * (x - x)  # here


def _mask_minus_mask(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    return softmax(_scores(x) + mask - mask, dim=-1) @ x  # here


def _row_by_row_in_place(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[1]):
        row = x[:, i]
        if i == 5:
            row = row * 0 / (row * 0)  # here
        out[:, i] = row
    return out


def _indexed_write(x: Tensor) -> Tensor:
    out = x.clone()
    out[:, torch.tensor([0])] = (x[:, :1] * 0).rsqrt() - (x[:, :1] * 0).rsqrt()  # here
    return out


def _half_overflow(x: Tensor) -> Tensor:
    return (x.float() * 1e6).to(torch.float16).to(x) * 0 + x  # here


def _dropped_and_kept(x: Tensor) -> Tensor:
    dropped = x * 0 / (x * 0)
    kept = (x * 0).log() - (x * 0).log()  # here
    return torch.cat((dropped, kept), dim=1)[:, x.shape[1] :]


def _constant(x: Tensor) -> Tensor:
    return x * torch.tensor(float("nan"))  # here


def _fused_attention(x: Tensor) -> Tensor:
    q = x[:, None]
    return scaled_dot_product_attention(q, q * float("inf"), q)[:, 0]  # here


def _written_through_numpy(x: Tensor) -> Tensor:
    y = x.detach().clone()
    y.numpy()[0, 0] = float("nan")
    return x + y  # here


def _unwritten(x: Tensor) -> Tensor:
    out = torch.empty_like(x)  # here
    out[:, 1:] = x[:, 1:]
    return out


def _two_bugs(x: Tensor) -> Tensor:
    position = torch.arange(x.shape[1])[None, :, None]
    first = torch.where(position == 2, x * 0 / (x * 0), x)  # here
    second = torch.where(position == 4, (x * 0).log() * 0, x)  # here
    return first + second


def _at_token(position: int, beside: Tensor, x: Tensor) -> Tensor:
    here = torch.arange(x.shape[1])[None, :, None] == position
    return torch.where(here, beside * 0 + x, x)


def _two_overflows_of_one_growth(x: Tensor) -> Tensor:
    weights = (x * 0 + 60).exp()  # here
    squares = weights * weights
    cubes = weights.clone().mul_(2).pow(3)
    return _at_token(2, squares, x) + _at_token(4, cubes, x)


def _two_overflows_of_two_growths(x: Tensor) -> Tensor:
    one = (x * 0 + 60).exp()
    other = (x * 0 + 30).pow(16)
    squares = one * one  # here
    cubes = other.pow(3)  # here
    return _at_token(2, squares, x) + _at_token(4, cubes, x)


def _one_infinity_two_nans(x: Tensor) -> Tensor:
    infinite = (x.abs() * 1e6).exp()  # here
    return torch.cat((infinite - infinite, infinite / infinite), 1)[:, ::2]


empty_row = hosting(_softmax_of_an_empty_row)
overflow = hosting(_bare_exponential)
log_of_zero = hosting(_log_of_zero)
zero_divisor = hosting(_zero_divisor)
infinity_times_zero = hosting(_infinity_times_zero)
mask_minus_mask = hosting(_mask_minus_mask)
in_place = hosting(_row_by_row_in_place)
indexed_write = hosting(_indexed_write)
half_overflow = hosting(_half_overflow)
dropped_and_kept = hosting(_dropped_and_kept)
constant = hosting(_constant)
fused_attention = hosting(_fused_attention)
through_numpy = hosting(_written_through_numpy)
unwritten = hosting(_unwritten)
two_bugs = hosting(_two_bugs)
one_infinity_two_nans = hosting(_one_infinity_two_nans)
two_overflows_of_one_growth = hosting(_two_overflows_of_one_growth)
two_overflows_of_two_growths = hosting(_two_overflows_of_two_growths)


class _NoEpsilon(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM, eps=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(x - x)  # here


class _CalledDirectly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Host(_NoEpsilon())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.part.forward(x)


class _FaultyBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("decay", torch.arange(DIM).float().log())  # here

    def forward(self, x: Tensor) -> Tensor:
        return x * self.decay


class _UnwrittenParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(DIM).copy_(torch.ones(DIM)))
        self.bias = nn.Parameter(torch.full((DIM,), float("nan")))  # here

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.bias


class _OnlyInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + (x - x).rsqrt() if self.training else x  # here


def fused_norm() -> nn.Module:
    return Host(_NoEpsilon())


def called_directly() -> nn.Module:
    return _CalledDirectly()


def faulty_buffer() -> nn.Module:
    return Host(_FaultyBuffer())


def faulty_parameter() -> nn.Module:
    return Host(_UnwrittenParameter())


def only_in_training() -> nn.Module:
    return Host(_OnlyInTraining())


def two_layers() -> nn.Module:
    return nn.Sequential(Host(_OnlyInTraining()), Host(_OnlyInTraining()))


def _only_on_large(x: Tensor) -> Tensor:
    weights = (x.abs().amax(-1, keepdim=True) * 2).exp()  # here
    return x * (weights / weights)


def _only_in_half(x: Tensor) -> Tensor:
    return x + (x - x) / (x - x + 1e-8)  # here


class _Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_OnlyInTraining() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return sum(part(x[..., i::3]).sum() for i, part in enumerate(self.parts)) + x


def _decays_that_add_up(x: Tensor) -> Tensor:
    total = x[..., :1].abs().cumsum(1)  # a token with a large first channel, again and again
    return x * total.exp() * (-total).exp()  # here


only_on_large = hosting(_only_on_large)
on_a_repeated_token = hosting(_decays_that_add_up)
only_in_half = hosting(_only_in_half)
parallel = _Parallel


def _two_in_a_row(x: Tensor) -> Tensor:
    position = torch.arange(x.shape[1], device=x.device)[:, None]
    x = x / (position - 5)  # here
    return x / (position - 11)  # here


def _overflow_of_whole_rows(x: Tensor) -> Tensor:
    weights = (x.square() * 1e4 + 1e3).exp()  # here
    return weights / weights.sum(-1, keepdim=True)


two_in_a_row = hosting(_two_in_a_row)
overflow_of_whole_rows = hosting(_overflow_of_whole_rows)
