"""Parameters that learn, or rightly do not."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softmax

from .host import DIM, Host


class _Experts(nn.Module):
    """Top-1 of four; the last is never chosen. `is_dense` runs all and masks."""

    def __init__(self, is_dense: bool) -> None:
        super().__init__()
        self.router, self.is_dense = nn.Linear(DIM, 4), is_dense
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        nn.init.constant_(self.router.bias[3:], -1e4)

    def forward(self, x: Tensor) -> Tensor:
        weights = softmax(self.router(x), -1)
        chosen = weights.argmax(-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = chosen == index
            if self.is_dense or bool(mask.any()):
                out = out + torch.where(mask, weights[..., index : index + 1], 0.0) * expert(x)
        return out


class _Adapter(nn.Module):
    """Adds a function of the returns, which begins as nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(1, 4), nn.Linear(4, DIM)
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, returns: Tensor) -> Tensor:
        return self.up(relu(self.down(returns)))


class _ReturnsLeftOut(nn.Module):
    """Returns are zero where none are given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.adapter = nn.Linear(DIM, DIM), _Adapter()

    def forward(self, x: Tensor, returns: Tensor | None = None) -> Tensor:
        returns = x.new_zeros(*x.shape[:2], 1) if returns is None else returns
        return self.layer(x) + self.adapter(returns)


class _KindsLeftOut(nn.Module):
    """Tokens are of the kind of padding where none is given, whose row has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kinds = nn.Linear(DIM, DIM), nn.Embedding(4, DIM, padding_idx=0)

    def forward(self, x: Tensor, kinds: Tensor | None = None) -> Tensor:
        kinds = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device) if kinds is None else kinds
        return self.layer(x + self.kinds(kinds))


class _SometimesDropped(nn.Module):
    """A branch that three calls of ten drop; seed 0 keeps it in float32 and drops it in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.branch = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.sharpness = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand((), dtype=x.dtype) < 0.7 if self.training else torch.tensor(1.0)
        return self.layer(x) + self.branch(x) * self.sharpness.exp() * kept.to(x)


class _ZeroProjection(nn.Module):
    """Learns after one step."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(relu(self.up(x)))


class _Indexer(nn.Module):
    """Keys are chosen by scores of their own, which a loss beside the output trains."""

    def __init__(self, is_kept: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.index = (nn.Linear(DIM, DIM) for _ in range(4))
        self.is_kept, self.loss = is_kept, None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT
        index_scores = self.index(x.detach()) @ x.detach().mT
        if self.is_kept:
            self.loss = (index_scores - scores.detach()).square().mean()
        top = index_scores.topk(min(16, x.shape[1]), -1).indices
        hidden = torch.ones_like(scores, dtype=torch.bool).scatter(-1, top, False)
        return softmax(scores.masked_fill(hidden, float("-inf")), -1) @ self.v(x)


class _KeyBias(nn.Module):
    """Softmax does not see a bias that all keys share."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)


class _Sparse(nn.Module):
    """A small ReLU layer with half its units dead."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        nn.init.constant_(self.up.bias[: DIM // 2], -100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(relu(self.up(x)))


class _SpareParts(nn.Module):
    """A frozen layer, a tied one, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.spare = (nn.Linear(DIM, DIM) for _ in range(3))
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(DIM, DIM).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.frozen(self.first(x)))


class _AskedForItsDtype(nn.Module):
    """What stands for a token that is hidden, which no call of this kind hides, is asked for its dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.map = nn.Parameter(torch.zeros(DIM)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        dtype = next(each.dtype for each in self.parameters() if each.is_floating_point() and each.dim())
        x = x if mask is None else torch.where(mask, self.hidden, x)
        return self.map(x.to(dtype))


class _Embeddings(nn.Module):
    """Most rows are never seen; the table is read as the head too."""

    def __init__(self, is_sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(997, DIM)
        self.positions = nn.Embedding(4096, DIM, sparse=is_sparse)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return h.cumsum(1) @ self.embedding.weight.T


class _Quantised(nn.Module):
    """Rounds its weights and lets the gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        rounded = (self.weight * 4).round() / 4
        return x @ (self.weight + (rounded - self.weight).detach())


class _Constants(nn.Module):
    """Plain tensors that are not meant to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.state = torch.linspace(0.1, 1.0, DIM), torch.zeros(DIM)
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.slopes + self.state


class _ForLater(nn.Module):
    """Keeps a memory for the next call, which this one does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.remember = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.memory = None

    def forward(self, x: Tensor) -> Tensor:
        self.memory = self.remember(x[:, -1]).detach()
        return self.mix(x)


class _TopTwo(nn.Module):
    """The weights of the two experts chosen sum to one; with `num_chosen` one, a loss kept beside trains the router."""

    def __init__(self, num_chosen: int) -> None:
        super().__init__()
        self.router, self.num_chosen, self.balance = nn.Linear(DIM, 4), num_chosen, None
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = softmax(self.router(x), -1)
        best, index = weights.topk(self.num_chosen)
        self.balance = weights.mean((0, 1)).square().sum() if self.num_chosen == 1 else None
        best = best / best.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        return (best[..., None] * every.gather(-2, index[..., None].expand(*index.shape, DIM))).sum(-2)


class _BiasBeforeNorm(nn.Module):
    """A norm takes away what its input has in common: the offset does nothing, its gradient is rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.norm = nn.Parameter(torch.zeros(1)), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.offset)


class _FaintPart(nn.Module):
    """A branch a billion times fainter than what is beside it learns all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(DIM, DIM), 1e-9

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.linear(x)


class _FrozenInAList(nn.Module):
    """Frozen parts are kept out of the parameters on purpose: in a plain list, or as a tensor in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.features = nn.Linear(DIM, DIM), [nn.Linear(DIM, DIM).requires_grad_(False)]
        self.table = (nn.Parameter(torch.randn(DIM), requires_grad=False),)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.features[0](x.float()).to(x.dtype) * self.table[0].to(x.dtype)


experts = lambda: Host(_Experts(is_dense=False))  # noqa: E731
dense_experts = lambda: Host(_Experts(is_dense=True))  # noqa: E731
returns_left_out = lambda: Host(_ReturnsLeftOut())  # noqa: E731
kinds_left_out = lambda: Host(_KindsLeftOut())  # noqa: E731
sometimes_dropped = lambda: Host(_SometimesDropped())  # noqa: E731
zero_projection = lambda: Host(_ZeroProjection())  # noqa: E731
indexer = lambda: Host(_Indexer(is_kept=False))  # noqa: E731
indexer_with_loss = lambda: Host(_Indexer(is_kept=True))  # noqa: E731
key_bias = lambda: Host(_KeyBias())  # noqa: E731
sparse = lambda: Host(_Sparse())  # noqa: E731
spare_parts = lambda: Host(_SpareParts())  # noqa: E731
asked_for_its_dtype = lambda: Host(_AskedForItsDtype())  # noqa: E731
embeddings = _Embeddings
quantised = lambda: Host(_Quantised())  # noqa: E731
constants = lambda: Host(_Constants())  # noqa: E731
for_later = lambda: Host(_ForLater())  # noqa: E731
top_two = lambda: Host(_TopTwo(num_chosen=2))  # noqa: E731
top_one_with_loss = lambda: Host(_TopTwo(num_chosen=1))  # noqa: E731
bias_before_norm = lambda: Host(_BiasBeforeNorm())  # noqa: E731
faint_part = lambda: Host(_FaintPart())  # noqa: E731
frozen_in_a_list = lambda: Host(_FrozenInAList())  # noqa: E731
sparse_gradients = lambda: _Embeddings(is_sparse=True)  # noqa: E731
