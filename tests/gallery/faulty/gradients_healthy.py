"""Odd gradients that are right, or other than the derivative on purpose: a note at most."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, one_hot, pad, scaled_dot_product_attention, softmax
from torch.utils.checkpoint import checkpoint

from .host import DIM, Host, hosting


class _RightSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        weights = softmax(scores, -1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (gradient * weights).sum(-1, keepdim=True))


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class _ForOnePass(torch.autograd.Function):
    """Its backward lets go of what it needs, and refuses a second pass in words."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.slope = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        if ctx.slope is None:
            raise RuntimeError("this graph is gone through only once")
        slope, ctx.slope = ctx.slope, None
        return gradient * slope


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return -gradient


class _AuxiliaryLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, torch.ones_like(ctx.like)


def _custom_softmax(x: Tensor) -> Tensor:
    return _RightSoftmax.apply(x @ x.mT) @ x


def _straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def _to_a_constant(x: Tensor) -> Tensor:
    """What is chosen counts as one, and the scores that chose it are trained."""
    scores = x.mean(-1, keepdim=True).sigmoid()
    return x * (scores + (1 - scores).detach())


def _to_a_constant_in_a_bucket(x: Tensor) -> Tensor:
    """Few tokens are all chosen; more are filled up to a bucket with zeros, at which no derivative is finite."""
    length = x.shape[1]
    if length <= 12:
        return x
    filled = pad(x, (0, 0, 0, max(0, 24 - length)))
    scores = filled.square().sum(-1, keepdim=True).sqrt().sigmoid()
    return (filled * (scores + (1 - scores).detach()))[:, :length]


def _eight_bits(x: Tensor) -> Tensor:
    """The scale follows the values, so that the output moves a little, though not as the gradient says."""
    scale = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return x + ((x / scale).round() * scale - x).detach()


def _hard_choice(x: Tensor) -> Tensor:
    soft = softmax(x, -1)
    hard = one_hot(soft.argmax(-1), x.shape[-1]).to(x)
    return hard - soft.detach() + soft


def _shrunk(x: Tensor) -> Tensor:
    return x * 0.1 + x.detach() * 0.9


def _shrunk_in_pairs(x: Tensor) -> Tensor:
    pairs = x.sin().unflatten(-1, (-1, 2))
    return (pairs * 0.5 + pairs.detach() * 0.5).tanh().flatten(-2)


def _stable_softmax(x: Tensor) -> Tensor:
    scores = x @ x.mT
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True) @ x


def _top_two(x: Tensor) -> Tensor:
    kept = x.topk(2, -1)
    return torch.zeros_like(x).scatter(-1, kept.indices, softmax(kept.values, -1)) * x


def _auxiliary(x: Tensor) -> Tensor:
    gates = softmax(x, -1)
    return _AuxiliaryLoss.apply(x * gates, gates.mean((0, 1)).square().sum())


def _float32_norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * wide.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(x.dtype)


def _scores_in_bfloat16(x: Tensor) -> Tensor:
    """Attention whose softmax is taken in less than the module's own precision."""
    scores = (x @ x.mT).bfloat16() * DIM**-0.5
    return softmax(scores, -1).to(x.dtype) @ x


class _InFloat32(torch.autograd.Function):
    """As kernels have it: float32 inside, forward and backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.float() * x.float().sigmoid()).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = x.float().sigmoid()
        return (gradient.float() * (share + x.float() * share * (1 - share))).to(x.dtype)


def _checkpointed_in_float32(x: Tensor) -> Tensor:
    return checkpoint(lambda y: softmax(_float32_norm(y), -1, dtype=torch.float32).to(y.dtype), x, use_reentrant=False)


def _lost_in_float64(x: Tensor) -> Tensor:
    """Its gradient is finite in float32 alone, as where a constant is made for that."""
    return x.tanh() if x.dtype == torch.float32 else x.tanh() + (x * 0).abs().sqrt()


def _not_in_float64(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise TypeError("the kernel serves float32 and narrower")
    return _float32_norm(x)


def _fused(x: Tensor) -> Tensor:
    q = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)


def _recomputed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: gelu(y).cumsum(1), x, use_reentrant=False)


def _recomputed_reentrant(x: Tensor) -> Tensor:
    return checkpoint(lambda y: gelu(y).cumsum(1), x, use_reentrant=True)


def _written_row_by_row(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    state = torch.zeros_like(x[:, 0])
    for i in range(x.shape[1]):
        state = torch.tanh(0.9 * state + x[:, i])
        out[:, i] = state
    return out


class _Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, DIM), nn.Hardtanh())

    def forward(self, x: Tensor) -> Tensor:
        return dropout(self.layers(x), 0.2, self.training)


class _FrozenBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(DIM, DIM).requires_grad_(False)
        self.live = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            extra = self.frozen(x)
        return self.live(x) + extra


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, DIM, padding_idx=0)
        self.middle = nn.GRU(DIM, DIM, batch_first=True)
        self.head = nn.Linear(DIM, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(input_ids))[0])


class _Ternary(nn.Linear):
    """Weights rounded to -1, 0 and 1 times their mean size, with a straight-through gradient."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.abs().mean()
        rounded = (self.weight / size).round().clamp(-1, 1) * size
        weight = self.weight + (rounded - self.weight).detach()
        return nn.functional.linear(x, weight, self.bias)


def _torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True)


def _normed() -> nn.Module:
    return Host(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM)), nn.LayerNorm(DIM)))


custom_softmax = hosting(_custom_softmax)
for_one_pass = hosting(_ForOnePass.apply)
straight_through = hosting(_straight_through)
to_a_constant = hosting(_to_a_constant)
to_a_constant_in_a_bucket = hosting(_to_a_constant_in_a_bucket)
eight_bits = hosting(_eight_bits)
rounded = hosting(_Rounded.apply)
hard_choice = hosting(_hard_choice)
reversed_gradient = hosting(_Reversed.apply)
shrunk = hosting(_shrunk)
shrunk_in_pairs = hosting(_shrunk_in_pairs)
stable_softmax = hosting(_stable_softmax)
top_two = hosting(_top_two)
auxiliary = hosting(_auxiliary)
float32_norm = hosting(_float32_norm)
scores_in_bfloat16 = hosting(_scores_in_bfloat16)
in_float32 = hosting(_InFloat32.apply)
checkpointed_in_float32 = hosting(_checkpointed_in_float32)
not_in_float64 = hosting(_not_in_float64)
lost_in_float64 = hosting(_lost_in_float64)
fused = hosting(_fused)
recomputed = hosting(_recomputed)
recomputed_reentrant = hosting(_recomputed_reentrant)
row_by_row = hosting(_written_row_by_row)
tied = _Tied
torch_layer = _torch_layer
normed = _normed


def relu() -> nn.Module:
    return Host(_Relu())


frozen_branch = _FrozenBranch


def ternary() -> nn.Module:
    return Host(_Ternary(DIM, DIM))
