"""Outputs that are right and gradients that are not the derivative, none of them NaN."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softmax

from .host import DIM, Host, hosting


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        weights = softmax(scores / 4, -1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (gradient * weights).sum(-1, keepdim=True))  # here


class _MissingTerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        rms = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(rms)
        return x * rms

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]  # here


class _ForgetsTheMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        visible = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
        weights = softmax((q @ k.mT).masked_fill(~visible, float("-inf")), -1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, gradient: Tensor):
        q, k, v, _ = ctx.saved_tensors
        weights = softmax(q @ k.mT, -1)  # here
        towards = gradient @ v.mT
        scores = weights * (towards - (towards * weights).sum(-1, keepdim=True))
        return scores @ k, scores.mT @ q, weights.mT @ gradient


class _WrongAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, gradient.sum(0).mean(0)  # here


class _TableLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (ids,) = ctx.saved_tensors
        found = torch.zeros(ctx.rows, gradient.shape[-1], dtype=gradient.dtype)
        found[ids.flatten()] = gradient.flatten(0, 1)  # here
        return found, None


def _causal_weights(x: Tensor) -> Tensor:
    scores = x @ x.mT / 4
    return softmax(scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")), -1)


def _detached_weights(x: Tensor) -> Tensor:
    weights = _causal_weights(x)
    return weights.detach() @ x  # here


def _data_of_a_gate(x: Tensor) -> Tensor:
    gate = x.mean(-1, keepdim=True).sigmoid()
    return x * gate.data  # here


def _branch_without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        branch = x.cumsum(1) / 8  # here
    return x.tanh() + branch


def _item(x: Tensor) -> Tensor:
    size = x.square().mean().sqrt()
    return x * (1 / size.item())  # here


def _silent_write(x: Tensor) -> Tensor:
    weights = x.sigmoid()
    weights.data.mul_(0.5)  # here
    return weights * x


def _silent_numpy(x: Tensor) -> Tensor:
    y = x.sigmoid()
    y.detach().numpy()[...] *= 0.5  # here
    return y * x


def _hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 0.5)  # here
    return x.tanh()


class _Rewrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM) / 4)

    def forward(self, x: Tensor) -> Tensor:
        kernel = nn.Parameter(self.weight * 0.5)
        return linear(x, kernel)  # here


class _OneOfTwoUses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM) / 4)

    def forward(self, x: Tensor) -> Tensor:
        h = linear(x, self.weight).tanh()
        return linear(h, self.weight.mT.detach())  # here


class _Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return _WrongAxis.apply(x, self.bias)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return _ForgetsTheMask.apply(self.q(x), self.k(x), self.v(x))


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(11, DIM))

    def forward(self, ids: Tensor) -> Tensor:
        return _TableLookup.apply(self.weight, ids)


class _TokenModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 11
        self.part = _Table()
        self.head = nn.Linear(DIM, 11)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.part(input_ids))


def _scaled(x: Tensor) -> Tensor:
    return _Scaled.apply(x @ x.mT) @ x


def _scaled_in_bfloat16(x: Tensor) -> Tensor:
    return _Scaled.apply((x @ x.mT).bfloat16()).to(x.dtype) @ x


def _detached_in_float32(x: Tensor) -> Tensor:
    wide = x.float()
    if wide.dtype == torch.float32:
        return (wide * wide.detach()).to(x.dtype)  # here
    return wide * wide


class _TrainingAlone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate = x.sigmoid()
        return x * (gate.detach() if self.training else gate)  # here


class _FutureGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.length = x.shape[1]
        return x.cumsum(1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.sum(1, keepdim=True).expand(-1, ctx.length, -1)  # here


class _Forgetful(torch.autograd.Function):
    """Its backward scales what it saved, in place."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.kept = x.detach().cos()
        return x.sin()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return ctx.kept.mul_(gradient)  # here


class _OnceOnly(torch.autograd.Function):
    """Its backward divides by how many passes through it are still to come."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.left = 2
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        ctx.left -= 1  # here
        return gradient * 2 / gradient.new_tensor(ctx.left)


class _ForOnePass(torch.autograd.Function):
    """Its backward lets go of what it needs, whatever is asked of the graph."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.slopes = [x.cos()]
        return x.sin()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.slopes.pop()  # here


class _Counting(nn.Module):
    """A shared scale that every backward moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: Tensor) -> Tensor:
        return _Warming.apply(x, self.calls)


class _Warming(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, calls: list[int]) -> Tensor:
        ctx.calls = calls
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.calls[0] += 1  # here
        return gradient * min(2.0, 0.5 * ctx.calls[0]), None


scaled = hosting(_scaled)
scaled_in_bfloat16 = hosting(_scaled_in_bfloat16)
detached_in_float32 = hosting(_detached_in_float32)
missing_term = hosting(_MissingTerm.apply)
detached_weights = hosting(_detached_weights)
data_of_a_gate = hosting(_data_of_a_gate)
branch_without_grad = hosting(_branch_without_grad)
item = hosting(_item)
hooked = hosting(_hooked)
silent_write = hosting(_silent_write)
silent_numpy = hosting(_silent_numpy)
future_gradient = hosting(_FutureGradient.apply)
forgetful = hosting(_Forgetful.apply)
once_only = hosting(_OnceOnly.apply)
for_one_pass = hosting(_ForOnePass.apply)


def rewrapped() -> nn.Module:
    return Host(_Rewrapped())


def one_of_two_uses() -> nn.Module:
    return Host(_OneOfTwoUses())


def wrong_axis() -> nn.Module:
    return Host(_Biased())


def forgets_the_mask() -> nn.Module:
    return Host(_Attention())


def training_alone() -> nn.Module:
    return Host(_TrainingAlone())


def counting() -> nn.Module:
    return Host(_Counting())


wrong_embedding = _TokenModel
