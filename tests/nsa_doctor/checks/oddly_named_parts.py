"""Parts named for known operations that compute odd forms of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.nsa_doctor.checks.misnamed_parts import DIM, Scaling, Weighted, named, rms
from tests.nsa_doctor.checks.oddly_named_functions import Handing, LearntSwish, WideSwish


class SwishInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(x.sigmoid())


class Curve(nn.Module):
    """That function of each value."""

    curve: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return type(self).curve(x)


def curved(name: str, curve: Callable[[Tensor], Tensor]) -> type[nn.Module]:
    """A part of that name which gives that function of each value."""
    return type(name, (Curve,), {"curve": staticmethod(curve)})


class Projecting(nn.Module):
    """A gated unit that projects before and gates by what it is given, as that of x-transformers."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.proj, self.activation = nn.Linear(DIM, 2 * DIM), activation

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * self.activation(gate)


class Given(nn.Module):
    """A gated unit that is given what its gate goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * self.activation(gate)


class ByItsClass(nn.Module):
    activation = staticmethod(torch.tanh)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * self.activation(gate)


class ByNumber(nn.Module):
    KINDS = (torch.sigmoid, torch.tanh)

    def __init__(self) -> None:
        super().__init__()
        self.kind = 1

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * self.KINDS[self.kind](gate)


class OfAnySigmoid(nn.Module):
    """With a slope and a shift of its gate."""

    def __init__(self, slope: float = 1.0, shift: float = 0.0, is_swish: bool = False) -> None:
        super().__init__()
        self.slope, self.shift, self.is_swish = slope, shift, is_swish

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        value = value * gate if self.is_swish else value
        return value * torch.sigmoid(self.slope * gate + self.shift)


class OfRanks(nn.Module):
    """The halves of each rank side by side."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.unflatten(-1, (4, 2, -1)).unbind(-2)
        return (functional.silu(gate) * value).flatten(-2)


class OfATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", functional.gelu(torch.linspace(-8, 8, 256)))

    def forward(self, x: Tensor) -> Tensor:
        at = ((x.clamp(-8, 8) + 8) / 16 * 255).round().long()
        return self.get_buffer("table").to(x.dtype)[at]


class Shifted(nn.Module):
    """Without its mean, and of the size of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.7015 * (functional.gelu(x) - 0.2821)


def quantised(x: Tensor) -> Tensor:
    x = (x / 0.05).round() * 0.05
    return x * x.sigmoid()


def then_normed(x: Tensor) -> Tensor:
    y = in_turns(functional.silu)(x)
    return functional.rms_norm(y, y.shape[-1:])


class OfTorch(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)
        return y.to(x.dtype)


class OfTokens(nn.Module):
    """Of [B, D, S], as images have it."""

    def __init__(self, kind: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(DIM, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.kind(x.mT) * self.weight).mT


class Inner(nn.Module):
    """A norm within, and weights that one is added to, as in x-transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.gamma = nn.LayerNorm(DIM, elementwise_affine=False), nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(x) * (self.gamma + 1)


class Stable(Weighted):
    """Divides by its largest value first, as half precision needs it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x / x.amax(-1, keepdim=True)
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) * (var + 1e-5).rsqrt() * self.weight


class Unbiased(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


class OfT5(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * rms(x)


class Partial(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * rms(x[..., : DIM // 8]).expand_as(x)


class OfHeads(Weighted):
    """Each head by itself, of all its channels together."""

    def __init__(self) -> None:
        super().__init__(DIM // 4)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (4, -1))
        return (self.weight * heads * rms(heads)).flatten(-2)


class OfUnitLength(nn.Module):
    """A length of the root of the width, and a factor that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1) * DIM**0.5 * (self.g + 1)


class FromLogarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * rms(x) * self.weight.exp()


class Conditioned(nn.Module):
    """Its condition is handed to it."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return functional.layer_norm(x, (DIM,)) * (1 + condition) + x


class OfVectors(nn.Module):
    """Of the lengths of vectors of three, as in VN-Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(DIM // 4)

    def forward(self, x: Tensor) -> Tensor:
        vectors = x.unflatten(-1, (-1, 4))
        lengths = vectors.norm(dim=-1)
        return (vectors / lengths.unsqueeze(-1) * self.ln(lengths).unsqueeze(-1)).flatten(-2)


class Clipping(Weighted):
    """Cuts its input off, for half precision."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-50, 50)
        return x * rms(x) * self.weight


class Rounding(Weighted):
    """To four bits."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * rms(x) * self.weight
        steps = 7 / y.abs().amax(-1, keepdim=True)
        return (y * steps).round() / steps


class Shifting(Weighted):
    def __init__(self) -> None:
        super().__init__()
        self.offset = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x * rms(x) * self.weight + self.offset


class BehindFirst(Weighted):
    """The first two tokens stay as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x[:, :2], functional.layer_norm(x[:, 2:], (DIM,)) * self.weight), 1)


class HandingOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = named("LayerNorm", Conditioned)()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x, x.tanh())
        return y


class Seasonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layernorm(x)
        return x - x.mean(1, keepdim=True)


class Wrapping(nn.Module):
    """A layer scale around a part, as in CaiT."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fn = nn.Parameter(torch.full((1, 1, DIM), 0.1)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) * self.scale


class ScaledInPlace(Scaling):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.gamma)


class Decaying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((DIM,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(-self.decay)


class ScaledByOneMore(Scaling):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.gamma)


class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)


def in_turns(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: activation(x[..., ::2]) * x[..., 1::2]


HEALTHY: dict[str, Callable[[], Any]] = {
    "swish": curved("Swish", lambda x: x * x.sigmoid()),
    "swish-learnt": named("Swish", LearntSwish),
    "swish-learnt-from-below": lambda: named("Swish", LearntSwish)(-0.5),
    "swish-of-channels": lambda: named("Swish", LearntSwish)(0.7, DIM),
    "swish-from-zero": lambda: named("Swish", LearntSwish)(0.0, DIM),
    "swish-wide": named("Swish", WideSwish),
    "swish-in-place": named("Swish", SwishInPlace),
    "swish-hard": curved("Swish", functional.hardswish),
    "gelu": curved("GELU", functional.gelu),
    "gelu-quick": curved("QuickGELU", lambda x: x * torch.sigmoid(1.702 * x)),
    "gelu-cut-off": curved("GELU", lambda x: functional.gelu(x).clip(-10, 10)),
    "gelu-scaled": curved("GELU", lambda x: 1.7015 * functional.gelu(x)),
    "gelu-of-a-table": named("GELU", OfATable),
    "gelu-shifted": named("GELU", Shifted),
    "swish-quantised": curved("Swish", quantised),
    "relu2-cut-off": curved("SquaredReLU", lambda x: x.clamp(0, 4).square()),
    "mish": curved("Mish", lambda x: x * functional.softplus(x).tanh()),
    "mish-steep": curved("Mish", lambda x: x * functional.softplus(x, beta=1.5).tanh()),
    "relu2": curved("SquaredReLU", lambda x: functional.relu(x) ** 2),
    "relu2-signed": curved("ReluSquared", lambda x: x.sign() * x.square()),
    "relu2-a-limit": curved("ReLU2", lambda x: x.clamp(0, 2)),
    "glu": curved("GLU", lambda x: functional.glu(x, -1)),
    "glu-the-other-half": curved("GLU", lambda x: x[..., : DIM // 2].sigmoid() * x[..., DIM // 2 :]),
    "glu-of-silu": curved("GLU", in_turns(functional.silu)),
    "glu-by-its-class": named("GLU", ByItsClass),
    "glu-by-number": named("GLU", ByNumber),
    "glu-shifted": lambda: named("GLU", OfAnySigmoid)(1.0, 2.0),
    "swiglu-steep": lambda: named("SwiGLU", OfAnySigmoid)(2.5, 0.0, True),
    "swiglu-of-ranks": named("SwiGLU", OfRanks),
    "swiglu-normed": curved("SwiGLU", then_normed),
    "glu-given": named("GLU", Given),
    "glu-projecting": named("GLU", Projecting),
    "geglu": curved("GEGLU", lambda x: x[..., : DIM // 2] * functional.gelu(x[..., DIM // 2 :])),
    "geglu-of-silu": curved("GEGLU", in_turns(functional.silu)),  # in a package that is released
    "reglu": curved("ReGLU", in_turns(functional.relu)),
    "swiglu-projecting": named("SwiGLU", Projecting),
    "layer-scale": named("LayerScale", ScaledInPlace),
    "layer-scale-one-more": named("LayerScale", ScaledByOneMore),
    "layer-scale-of-a-decay": named("LayerScale", Decaying),
    "layer-scale-around": named("LayerScale", Wrapping),
    "layer": curved("LayerNorm", lambda x: functional.layer_norm(x, (DIM,))),
    "layer-of-torch": named("LayerNormFp32", OfTorch),
    "layer-inner": named("LayerNorm", Inner),
    "layer-stable": named("LayerNorm", Stable),
    "layer-unbiased": named("LayerNorm", Unbiased),
    "layer-of-t5": named("LayerNorm", OfT5),
    "layer-of-a-row": curved("LayerNorm", lambda x: functional.layer_norm(x, x.shape[1:])),
    "layer-of-vectors": named("LayerNorm", OfVectors),
    "layer-behind-the-first": named("LayerNorm", BehindFirst),
    "rms-clipping": named("RMSNorm", Clipping),
    "rms-rounding": named("RMSNorm", Rounding),
    "rms-shifting": named("RMSNorm", Shifting),
    "rms-cut-off": curved("RMSNorm", lambda x: (x * rms(x)).clamp(-1.5, 1.5)),
    "layer-seasonal": named("my_Layernorm", Seasonal),
    "layer-conditioned": HandingOn,
    "layer-channels-first": lambda: named("LayerNorm2d", OfTokens)(lambda x: functional.layer_norm(x.mT, (DIM,)).mT),
    "rms": named("RMSNorm", OfT5),
    "rms-from-a-tenth": lambda: named("RMSNorm", OfT5)(DIM, 0.1),
    "rms-from-nothing": lambda: named("RMSNorm", OfT5)(DIM, 0.0),
    "rms-partial": named("RMSNorm", Partial),
    "rms-of-heads": named("RMSNorm", OfHeads),
    "rms-unit-length": named("SimpleRMSNorm", OfUnitLength),
    "rms-from-logarithm": named("RMSNorm", FromLogarithm),
    "rms-over-tokens": curved("RMSNorm", lambda x: x * rms(x, 1)),
    "scale-norm": curved("ScaleNorm", lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5) * DIM**0.5),
    "l2": curved("L2Norm", lambda x: functional.normalize(x, dim=-1, eps=1e-12)),
    "part-of-a-tensor-that-is-not-copied": Handing,
    "random": named("Swish", Drawn),
}
