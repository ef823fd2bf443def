"""Gates whose logits meet what is no parameter on the way, and what is gated elementwise beside a residual."""

import torch
from torch import Tensor, nn

from .nsa_like import DIM


class Tempered(nn.Module):
    """Two branches under a gate that starts at zero; `way` says what its logits meet before they become weights."""

    def __init__(self, way: str, kind: str = "softmax", is_zero: bool = True, shift: float = 0.0) -> None:
        super().__init__()
        self.way, self.kind = way, kind
        self.score, self.left, self.right = nn.Linear(DIM, 2), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.temperature = nn.Parameter(torch.ones(2), requires_grad=way != "frozen temperature")
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))
        self.register_buffer("shift", torch.tensor([0.0, shift]))
        self.is_open = [True, True]
        if is_zero:
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.tempered(self.score(x))
        weights = logits.softmax(-1) if self.kind == "softmax" else logits.sigmoid()
        return weights[..., :1] * self.left(x) + weights[..., 1:] * self.right(x)

    def tempered(self, logits: Tensor) -> Tensor:
        match self.way:
            case "buffer":
                return logits / self.scale
            case "bias buffer":
                return logits + self.shift
            case "bias of each head":
                return logits + self.shift[None, None]
            case "in place":
                return logits.mul_(self.scale).add_(self.shift)
            case "tensor made here":
                return logits * torch.tensor([0.5, 2.0])
            case "clipped":
                return (logits / self.scale).clip(-5, 5)
            case "masked":
                return logits.masked_fill(~torch.tensor(self.is_open), float("-inf"))
            case "where":
                return torch.where(torch.tensor(self.is_open), logits, -1e9)
            case _:
                return logits / self.temperature


class Elementwise(nn.Module):
    """A highway: each feature is gated by itself, and what the gate leaves is passed by."""

    def __init__(self, is_zero: bool = True, way: str = "carried") -> None:
        super().__init__()
        self.gate, self.inner, self.way = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), way
        if is_zero:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.gate(x))
        match self.way:
            case "carried":
                return share * self.inner(x).tanh() + (1 - share) * x
            case "lerp":
                return torch.lerp(x, self.inner(x).tanh(), share)
            case "residual":
                return x + share * self.inner(x)
            case _:
                return x + (2 * share - 1) * self.inner(x)


class Scaled(nn.Module):
    """A residual branch behind a number that starts at zero; `way` says how the number is made."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(DIM if way == "layer scale" else 1))
        self.inner, self.way = nn.Linear(DIM, DIM), way

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha.tanh() if self.way == "tanh" else self.alpha
        return x + alpha * self.inner(x)


class Shaped(nn.Module):
    """Two branches under a gate that is computed `flattened` over rows and tokens, or `token by token`."""

    def __init__(self, way: str, is_zero: bool = True) -> None:
        super().__init__()
        self.way = way
        self.score, self.left, self.right = nn.Linear(DIM, 2), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        if is_zero:
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "flattened":
            return self.mixed(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if self.way == "each with a length of one":
            return torch.cat([self.mixed(x[:, t : t + 1]) for t in range(x.shape[1])], dim=1)
        return torch.stack([self.mixed(token) for token in x.unbind(1)], dim=1)

    def mixed(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(-1)
        return weights[..., :1] * self.left(x) + weights[..., 1:] * self.right(x)


class Fused(nn.Module):
    """A gate that no product of its own shows: a function of autograd's mixes the branches."""

    def __init__(self, is_zero: bool = True) -> None:
        super().__init__()
        self.score, self.left, self.right = nn.Linear(DIM, 2), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        if is_zero:
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)

    def gate(self, x: Tensor) -> Tensor:
        return self.score(x).exp() / self.score(x).exp().sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x)
        return weights[..., :1] * self.left(x) + weights[..., 1:] * self.right(x)
