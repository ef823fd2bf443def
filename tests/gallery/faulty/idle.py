"""Parameters that come to nothing, and those that only seem to; `# here` marks where they are made or left out."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softmax

from .host import DIM, Host


class _Gated(nn.Module):
    """`way` says what is forgotten of a gated layer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.up, self.gate, self.down = (nn.Linear(DIM, DIM) for _ in range(3))
        self.more = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3)) if "layers" in way else nn.ModuleList()
        self.token = nn.Parameter(torch.zeros(DIM)) if way == "parameter" else None  # here

    def forward(self, x: Tensor) -> Tensor:  # here
        wide = self.up(x)
        for layer in self.more[: 2 if self.way == "last of the layers" else 3]:
            wide = wide + torch.tanh(layer(wide))
        return self.down(self.gated(x, wide))

    def gated(self, x: Tensor, wide: Tensor) -> Tensor:
        if self.way == "times zero":
            return wide + 0.0 * silu(getattr(self, "gate")(x))  # noqa: B009
        if self.way == "minus itself":
            gate = self.gate(x)
            return wide + (gate - gate)
        if self.way == "masked away":
            return wide + silu(self.gate(x)).masked_fill(torch.ones_like(x, dtype=torch.bool), 0.0)
        return wide * silu(self.gate(x))


class _Uncalled(nn.Module):
    """A layer that no method names."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.spare = nn.Linear(DIM, DIM), nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, 1))

    def reset_parameters(self) -> None:
        self.spare[0].reset_parameters()

    def forward(self, x: Tensor) -> Tensor:  # here
        return self.up(x)


class _Conditional(nn.Module):
    """A layer for one case: of length, of input, of mode, of what its class may still be asked for."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.up, self.other, self.case = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), case

    def forward(self, x: Tensor) -> Tensor:
        takes_other = {
            "length": x.shape[1] > 200,
            "input": bool(x.abs().amax() > 20),
            "mode": not self.training,
            "later": False,
        }[self.case]
        return self.other(self.up(x)) if takes_other else self.up(x)


class _Dropped(nn.Module):
    """Leaves one of its layers out at each call in training, by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        left_out = int(torch.randint(12, ())) if self.training else -1
        for index, layer in enumerate(self.layers):
            x = x if index == left_out else x + torch.tanh(layer(x))
        return x


class _ManyExperts(nn.Module):
    """More experts than tokens; the weights of those chosen are kept as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, 500)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(500))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = softmax(self.router(x), -1).max(-1)
        y = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            here = chosen == index
            y = y.index_put((here,), self.experts[index](x[here]) * weight[here, None])
        return y


class _Switched(nn.Module):
    """Starts at zero and learns after a step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.alpha = nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.inner(x)


def gated(way: str) -> nn.Module:
    return Host(_Gated(way))


uncalled = lambda: Host(_Uncalled())  # noqa: E731
HEALTHY = {
    **{case: lambda case=case: Host(_Conditional(case)) for case in ("length", "input", "mode")},
    "all layers": lambda: gated("layers"),
    "layers dropped by chance": lambda: Host(_Dropped()),
    "more experts than tokens": lambda: Host(_ManyExperts()),
    "starts at zero": lambda: Host(_Switched()),
    "frozen": lambda: uncalled().requires_grad_(False),
}
later = lambda: Host(_Conditional("later"))  # noqa: E731
