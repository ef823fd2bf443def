"""Parameters that cannot learn, over attention, convolution, recurrence and token models.

`# here` marks the line that is to blame.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, pad, softmax

from .host import DIM, Host


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x) @ self.v(x)

    def weights(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return softmax((self.q(x) @ self.k(x).mT).masked_fill(hidden, float("-inf")), -1)


class _DetachedWeights(_Attention):
    def weights(self, x: Tensor) -> Tensor:
        return super().weights(x).detach()  # here


class _NoGradScores(_Attention):
    def weights(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scores = self.q(x) @ self.k(x).mT  # here
        return softmax(scores.tril(), -1)


class _CopiedWeight(nn.Module):
    """A convolution whose weight is copied before use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM, 3) / DIM)
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.data.clone()  # here
        return conv1d(pad(x.mT, (2, 0)), weight, self.bias).mT


class _ScaleAsNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.item()  # here


class _ThroughNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.9, DIM))

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.from_numpy(self.decay.detach().numpy()).to(x)  # here
        state, outputs = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = decay * state + token
            outputs.append(state)
        return torch.stack(outputs, 1)


class _Switch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.gate(x) > 0).to(x.dtype)  # here


class _ThrownAway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        self.gate(x).sigmoid()  # here
        return self.up(x)


class _ThrownAwayLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.up = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        state = self.second(self.first(x).tanh())
        state = state + state.mean(1, keepdim=True)  # here
        return self.up(x)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return linear(x, weight)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient @ ctx.saved_tensors[0], None


class _ForgottenInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return _NoGradient.apply(x, self.weight)  # here


class _ZeroHook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)  # here
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 0)
        return h + x


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


class _ZeroBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return _Zeros.apply(self.rnn(x)[0])  # here


class _LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.zeros(4, DIM)), nn.Parameter(torch.zeros(DIM, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.down.mT @ self.up.mT  # here


class _LowRankOfReturns(nn.Module):
    """Returns, which are zero where none are given, by two maps that both start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.adapter = nn.Linear(DIM, DIM), nn.Sequential(nn.Linear(1, 4), nn.GELU(), nn.Linear(4, DIM))
        for each in self.adapter.parameters():
            nn.init.zeros_(each)

    def forward(self, x: Tensor, returns: Tensor | None = None) -> Tensor:
        returns = x.new_zeros(*x.shape[:2], 1) if returns is None else returns
        return self.layer(x) + self.adapter(returns)  # here


class _Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((DIM,), 5.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.rate.clamp(max=1.0)  # here


class _Renormalised(nn.Module):
    """The weight of the one expert chosen is divided by the sum of the weights chosen: it is one, up to rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, index = softmax(self.router(x), -1).topk(1)  # here
        best = best / best.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        return (best[..., None] * every.gather(-2, index[..., None].expand(*index.shape, DIM))).sum(-2)


class _RenormalisedInFloat32(_Renormalised):
    """The same with its softmax in float32 whatever the input is in."""

    def forward(self, x: Tensor) -> Tensor:
        weights = softmax(self.router(x).float(), -1, dtype=torch.float32)
        best, index = weights.topk(1)  # here
        best = (best / best.sum(-1, keepdim=True)).to(x.dtype)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        return (best[..., None] * every.gather(-2, index[..., None].expand(*index.shape, DIM))).sum(-2)


class _PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(DIM, DIM) for _ in range(3)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()  # here
        return x


class _OneOfTwoFrozen(nn.Module):
    """A plain list of which one part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(DIM, DIM).requires_grad_(False), nn.Linear(DIM, DIM)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()  # here
        return x


class _PlainAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = {"scale": torch.ones(DIM, requires_grad=True)}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table["scale"]  # here


class _Product(nn.Module):
    """`nn.Parameter(...) * 0.1` is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM)) + 0.1

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight  # here


class _FreshParameter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scale = nn.Parameter(torch.ones(DIM))
        return x * scale  # here


class _TokenModel(nn.Module):
    """The head reads the embedding's data."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, DIM)
        self.positions = nn.Parameter(torch.randn(1024, DIM))
        self.mixer = Host(_Attention())
        self.head = nn.Linear(DIM, 11)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.as_tensor(self.positions.detach()[: ids.shape[1]])  # here
        return self.head(self.mixer(self.embedding(ids) + positions))


detached_weights = lambda: Host(_DetachedWeights())  # noqa: E731
no_grad_scores = lambda: Host(_NoGradScores())  # noqa: E731
copied_weight = lambda: Host(_CopiedWeight())  # noqa: E731
scale_as_number = lambda: Host(_ScaleAsNumber())  # noqa: E731
through_numpy = lambda: Host(_ThroughNumpy())  # noqa: E731
switch = lambda: Host(_Switch())  # noqa: E731
thrown_away = lambda: Host(_ThrownAway())  # noqa: E731
thrown_away_later = lambda: Host(_ThrownAwayLater())  # noqa: E731
forgotten_in_backward = lambda: Host(_ForgottenInBackward())  # noqa: E731
token_model = _TokenModel
zero_hook = lambda: Host(_ZeroHook())  # noqa: E731
zero_backward = lambda: Host(_ZeroBackward())  # noqa: E731
low_rank = lambda: Host(_LowRank())  # noqa: E731
low_rank_of_returns = lambda: Host(_LowRankOfReturns())  # noqa: E731
clamped = lambda: Host(_Clamped())  # noqa: E731
renormalised = lambda: Host(_Renormalised())  # noqa: E731
renormalised_in_float32 = lambda: Host(_RenormalisedInFloat32())  # noqa: E731
plain_list = lambda: Host(_PlainList())  # noqa: E731
one_of_two_frozen = lambda: Host(_OneOfTwoFrozen())  # noqa: E731
plain_attribute = lambda: Host(_PlainAttribute())  # noqa: E731
product = lambda: Host(_Product())  # noqa: E731
fresh_parameter = lambda: Host(_FreshParameter())  # noqa: E731
