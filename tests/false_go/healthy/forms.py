"""Healthy subjects in odd forms: what they return, how they are written, how weights are kept and in which dtype."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.false_go.healthy._parts import DIM, MLP, Attention, Block, Model, hidden_from


class Returns(nn.Module):
    """A block whose answer is put into something."""

    def __init__(self, holder):
        super().__init__()
        self.block, self.holder = Block(), holder

    def forward(self, x):
        return self.holder(self.block(x))


class Answer(NamedTuple):
    output: Tensor
    loss: Tensor


@dataclass
class Outputs:
    hidden: Tensor
    cache: None = None


def returns_a_pair_with_an_auxiliary_loss():
    return Returns(lambda y: (y, y.square().mean()))


def returns_a_named_tuple():
    return Returns(lambda y: Answer(y, y.mean()))


def returns_a_mapping():
    return Returns(lambda y: OrderedDict(last_hidden_state=y, pooled=y[:, -1]))


def returns_a_record():
    return Returns(Outputs)


def returns_a_list():
    return Returns(lambda y: [y])


def weight_norm():
    block = Block()
    parametrizations.weight_norm(block.mixer.q)
    parametrizations.weight_norm(block.mlp[0])
    return block


def spectral_norm():
    block = Block()
    parametrizations.spectral_norm(block.mlp[0])
    return block


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


def parametrised_weight():
    block = Block()
    parametrize.register_parametrization(block.mixer.q, "weight", Symmetric())
    return block


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(DIM, DIM).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(3, DIM) / 4), nn.Parameter(torch.zeros(DIM, 3))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


def low_rank_adapter():
    return Block(mlp=LowRank())


class Quantised(nn.Module):
    """Eight-bit weights in a buffer, a trained scale per row."""

    def __init__(self):
        super().__init__()
        weight = torch.randn(DIM, DIM) / 4
        self.scale = nn.Parameter(weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("levels", (weight / self.scale.detach()).round().to(torch.int8))

    def forward(self, x):
        return F.linear(x, self.levels.to(x.dtype) * self.scale)


def quantised_weights():
    return Block(mlp=Quantised())


class Rounded(nn.Linear):
    def forward(self, x):
        step = self.weight.abs().max().detach() / 7
        weight = self.weight + ((self.weight / step).round() * step - self.weight).detach()
        return F.linear(x, weight, self.bias)


def quantised_in_training_with_straight_gradient():
    return Model(Block(mlp=Rounded(DIM, DIM)))


def bfloat16_parameters():
    return Block().bfloat16()


def float16_parameters():
    return Block().half()


def float64_parameters():
    return Block().double()


class Island(Attention):
    def mix(self, q, k, v):
        return super().mix(q.float(), k.float(), v.float()).to(q.dtype)


def attention_in_float32():
    return Block(Island())


class WideNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class Mixed(Block):
    def __init__(self):
        super().__init__(norm=WideNorm)
        self.bfloat16()
        self.norm_1.float()
        self.norm_2.float()


def bfloat16_with_norms_in_float32():
    return Mixed()


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


class SwishLayer(nn.Module):
    def forward(self, x):
        return Swish.apply(x)


def custom_function():
    return Block(mlp=nn.Sequential(nn.Linear(DIM, DIM), SwishLayer(), nn.Linear(DIM, DIM)))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        h = self.up(x)
        h.relu_()
        y = self.down(h).mul_(0.5)
        y += x
        return y


def in_place_but_legal():
    return Block(mlp=InPlace())


class Einsums(Attention):
    def forward(self, x):
        weight = self.q.weight.view(self.heads, self.head_dim, DIM)
        q = torch.einsum("bsc,hdc->bhsd", x, weight)
        k, v = (each(x).view(*x.shape[:2], self.heads, self.head_dim) for each in (self.k, self.v))
        scores = torch.einsum("bhsd,bthd->bhst", q, k) / self.head_dim**0.5
        return self.out(torch.einsum("bhst,bthd->bshd", self.weights(scores), v).reshape(x.shape))

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, DIM, bias=False)


def einsums():
    return Block(Einsums())


class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nested(depth - 1) if depth else Block()

    def forward(self, x):
        return self.inner(x)


def nested_deeply():
    return Nested(6)


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(DIM, DIM) / 4) for _ in range(2)])
        self.norms = nn.ModuleDict({"before": nn.LayerNorm(DIM), "after": nn.LayerNorm(DIM)})

    def forward(self, x):
        y = self.norms["before"](x)
        for weight in self.weights:
            y = torch.tanh(y @ weight)
        return self.norms["after"](y)


def lists_of_parameters():
    return Block(mlp=Lists())


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.LazyLinear(24), nn.LazyLinear(DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def lazy_linear():
    return Lazy()


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x):
        return torch.func.vmap(torch.func.vmap(self.linear))(x)


def mapped_by_torch_func():
    return Block(mlp=Mapped())


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gain = MLP(), nn.Parameter(torch.ones(()))

    def forward(self, x):
        scaled = {name: value * self.gain for name, value in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, scaled, (x,))


def called_functionally():
    return Block(mlp=Functional())


def compiled():
    return torch.compile(Block(), backend="eager", dynamic=True)


class Wrapper(nn.Module):
    """Passes attributes on to what it wraps, as wrappers for several devices do."""

    def __init__(self):
        super().__init__()
        self.module = Model()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def wrapped():
    return Wrapper()


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(DIM, 2)

    def forward(self, x):
        x = x.transpose(0, 1)
        y, _ = self.inner(x, x, x, attn_mask=hidden_from(len(x), len(x), x.device))
        return y.transpose(0, 1)


def time_first_inside():
    return Block(TimeFirst())


def torch_encoder_layer():
    class Layer(nn.TransformerEncoderLayer):
        def forward(self, x):
            return super().forward(x, src_mask=hidden_from(x.shape[1], x.shape[1], x.device), is_causal=True)

    return Layer(DIM, 2, 32, batch_first=True, norm_first=True)
