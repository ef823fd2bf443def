"""Parts and functions named for known operations that compute others, each at a marked line."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

DIM, EPS = 32, 1e-6


class Weighted(nn.Module):
    def __init__(self, size: int = DIM, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), start))


def rms(x: Tensor, axis: int = -1) -> Tensor:
    return torch.rsqrt(x.square().mean(axis, keepdim=True) + EPS)


def named(name: str, base: type[nn.Module]) -> type[nn.Module]:
    """That class by the name of an operation."""
    return type(name, (base,), {"forward": base.forward})


class SwishOfTanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.tanh()  # here


class SwishDivided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.sigmoid()  # here


class SwishSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x  # here


class SwishPlus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.sigmoid()  # here


class SwishTurned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(-x)  # here


class SigmoidAlone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)  # here


class GeluOfAnotherConstant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3)))  # here


class GeluWithoutOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * torch.erf(x / math.sqrt(2))  # here


class MishOfSigmoid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(functional.softplus(x))  # here


class PlainRelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x) ** 3  # here


class ReluAlone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x).abs()  # here


class GluOfTanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out, gate = x.chunk(2, dim=-1)
        return out * gate.tanh()  # here


class GluWithoutGate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out, gate = x.chunk(2, dim=-1)
        return out * gate  # here


class GluDivided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dim = -1

    def forward(self, x: Tensor) -> Tensor:
        out, gate = x.chunk(2, dim=self.dim)
        return out / gate.sigmoid()  # here


class GluPlus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out, gate = x.chunk(2, dim=-1)
        return out + functional.gelu(gate)  # here


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((DIM,), 0.1))


class ScaleDivided(Scaling):
    def forward(self, x: Tensor) -> Tensor:
        return x / self.gamma  # here


class ScaleAdded(Scaling):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma  # here


class Exchanged(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.normalized_shape, self.bias, self.weight, self.eps)  # here


class WithoutInner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(DIM, elementwise_affine=False)
        self.gamma = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma  # here


class MeanAdded(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).square().mean(-1, keepdim=True)
        return (x + mean) / (var + EPS).sqrt() * self.weight  # here


class OfMagnitude(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + EPS) * self.weight  # here


class Multiplied(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.weight  # here


class WithoutRoot(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS) * self.weight  # here


class OfTheMaximum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax(-1, keepdim=True)  # here


class WeightAdded(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * rms(x) + self.weight  # here


class ConstantAdded(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * rms(x) + DIM**0.5  # here


class BiasTaken(Weighted):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * functional.layer_norm(x, (DIM,)) - self.bias  # here


class WeightDivides(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * rms(x) / self.weight  # here


class Centred(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (DIM,)) * self.weight  # here


FAULTY: dict[str, tuple[type[nn.Module], str]] = {
    "tanh": (named("Swish", SwishOfTanh), "5 for -5, where x * sigmoid(x) is -0.03346"),
    "divided": (named("SiLU", SwishDivided), "where x * sigmoid(x) is"),
    "square": (named("Swish", SwishSquare), "25 for -5"),
    "plus": (named("Swish", SwishPlus), "where x * sigmoid(x) is"),
    "turned": (named("Swish", SwishTurned), "where x * sigmoid(x) is"),
    "sigmoid": (named("SiLUActivation", SigmoidAlone), "where x * sigmoid(x) is"),
    "gelu-constant": (named("NewGELUActivation", GeluOfAnotherConstant), "or an approximation of it"),
    "gelu-without-one": (named("GELU", GeluWithoutOne), "or an approximation of it"),
    "mish": (named("Mish", MishOfSigmoid), "where x * tanh(softplus(x)) is"),
    "relu2": (named("ReluSquared", PlainRelu), "where relu(x) squared is"),
    "relu-alone": (named("ReluSquared", ReluAlone), "where relu(x) squared is"),
    "glu-tanh": (named("GLU", GluOfTanh), "whichever half is the gate"),
    "glu-product": (named("GLU", GluWithoutGate), "times a gate, the sigmoid of the other"),
    "glu-divided": (named("GLU", GluDivided), "whichever half is the gate"),
    "geglu-plus": (named("GEGLU", GluPlus), "times GELU of the other"),
    "swiglu-tanh": (named("SwiGLU", GluOfTanh), "times SiLU of the other"),
    "scale-divided": (named("LayerScale", ScaleDivided), "a scale 1.25 times as large makes its output smaller"),
    "scale-added": (named("LayerScale", ScaleAdded), "an input twice as large does not give an output twice as large"),
    "exchanged": (named("LayerNorm", Exchanged), "weight is added to the normalised and multiplies nothing"),
    "without-inner": (named("LayerNorm", WithoutInner), "of their spread from (x - mean(x)) / sqrt(var(x))"),
    "mean-added": (named("LayerNorm", MeanAdded), "of their spread from (x - mean(x)) / sqrt(var(x))"),
    "of-magnitude": (named("RMSNorm", OfMagnitude), "of their spread from x / sqrt(mean(x**2))"),
    "multiplied": (named("RMSNorm", Multiplied), "of their spread from"),
    "without-root": (named("RMSNorm", WithoutRoot), "of their spread from"),
    "centred": (named("RMSNorm", Centred), "of their spread from"),
    "of-the-maximum": (named("L2Norm", OfTheMaximum), "of their spread from x / sqrt(sum(x**2))"),
    "weight-added": (named("RMSNorm", WeightAdded), "weight is added to the normalised"),
    "constant-added": (named("RMSNorm", ConstantAdded), "it adds up to 5.66 to the normalised, and has no bias"),
    "bias-taken": (named("LayerNorm", BiasTaken), "a larger bias makes its output smaller"),
    "weight-divides": (named("RMSNorm", WeightDivides), "a larger weight makes its output smaller"),
}


def swish(x: Tensor) -> Tensor:
    return x * x.tanh()  # here


def squared_relu(x: Tensor) -> Tensor:
    return functional.relu(x) + x.square()  # here


def rms_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return weight * x * (x.square().mean(-1, keepdim=True) + eps)  # here


def layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight.mul_(2) * x * x.square().mean(-1, keepdim=True)  # here


def glu(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.tanh()  # here


FAULTY_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "swish": (swish, "swish"),
    "squared-relu": (squared_relu, "squared_relu"),
    "rms-norm": (lambda x: rms_norm(x, torch.ones(DIM, dtype=x.dtype)), "rms_norm"),
    "weight-changed-in-place": (lambda x: layer_norm(x, torch.ones(DIM, dtype=x.dtype)), "layer_norm"),
    "glu-of-two": (lambda x: glu(x, x.flip(-1)), "glu"),
}
