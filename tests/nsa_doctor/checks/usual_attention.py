"""Attention in its usual designs, with projections of their own names, for tests of what each of them does."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention, softplus

WIDTH, HEADS = 8, 2
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ v


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


def transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores [.., K, Q]."""
    return (k @ q.mT).softmax(-2).mT @ v


def transposed_by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhkq,bhkd->bhqd", torch.einsum("bhkd,bhqd->bhkq", k, q).softmax(2), v)


def rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Behind norms and rotations."""
    angle = torch.arange(q.shape[-2], device=q.device, dtype=q.dtype)[:, None]

    def turned(x: Tensor) -> Tensor:
        one, other = normalize(x, dim=-1).chunk(2, -1)
        return torch.cat((one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()), -1)

    return attended(turned(q), turned(k), v)


def in_pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Seven queries at a time."""
    return torch.cat([(part @ k.mT).softmax(-1) @ v for part in q.split(7, -2)], -2)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def featured(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Positive features, as a Performer's."""
    q, k = softplus(q), softplus(k)
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def retained(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Without a softmax."""
    return (q @ k.mT).tril() @ v


def of_channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels attend to channels."""
    return (normalize(q, dim=-2).mT @ normalize(k, dim=-2)).softmax(-1).matmul(v.mT).mT


def as_slots(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries compete for keys, whose shares are made to add up to one."""
    weights = (q @ k.mT).softmax(-2) + 1e-8
    return weights / weights.sum(-1, keepdim=True) @ v


def as_plain_slots(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def both_ways(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries read keys, and keys queries."""
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.mT.softmax(-1) @ v


def of_differences(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) - 0.5 * (2 * q @ k.mT).softmax(-1)) @ v


def swapped(attend: Attend, order: str) -> Attend:
    """Given what `order` says in the places of queries, keys and values."""
    return lambda q, k, v: attend(*({"q": q, "k": k, "v": v}[name] for name in order))


class Attention(nn.Module):
    """Attends by `attend(q, k, v)`, of heads."""

    def __init__(self, attend: Attend, names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")) -> None:
        super().__init__()
        self.attend, self.names, self.out = attend, names, nn.Linear(WIDTH, WIDTH)
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = [getattr(self, name)(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in self.names]
        return self.out(self.attend(*parts).transpose(1, 2).flatten(-2))


class Layers(nn.Module):
    """Two of them with their residuals."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class OfWeights(nn.Module):
    """Projects by parameters of each head."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        for name in "qkv":
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(HEADS, WIDTH, WIDTH // HEADS) / 3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bsd,hde->bhse", x, getattr(self, f"W_{name}")) for name in self.order)
        return attended(q, k, v).transpose(1, 2).flatten(-2)


class Convolved(nn.Module):
    """Projects by convolutions of one tap."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.query_conv, self.key_conv, self.value_conv = (nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made = {"q": self.query_conv(x.mT), "k": self.key_conv(x.mT), "v": self.value_conv(x.mT)}
        q, k, v = (made[name] for name in self.order)
        return (v @ (q.mT @ k).softmax(-1).mT).mT


class Grouped(Attention):
    """One head of keys and values for all of the queries."""

    def __init__(self, attend: Attend) -> None:
        super().__init__(attend)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (part(x)[:, None].repeat(1, HEADS, 1, 1) for part in (self.k_proj, self.v_proj))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(-2))


class ByTorch(nn.Module):
    """Projects, and hands what it has projected to torch's attention, which projects once more."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.inner = order, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made = {"q": self.to_q(x), "k": self.to_k(x), "v": self.to_v(x)}
        return self.inner(*(made[name] for name in self.order))[0]


class Latents(nn.Module):
    """A few queries of its own read tokens, and tokens read them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(9, WIDTH))
        self.read, self.write = (Crossed() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.write(x, self.read(self.latents.expand(len(x), -1, -1), x))


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return (self.to_q(x) @ self.to_k(memory).mT).softmax(-1) @ self.to_v(memory)


class Disentangled(Attention):
    """Scores contents against relative places in both directions, by the same projections."""

    def __init__(self) -> None:
        super().__init__(attended, ("query_proj", "key_proj", "value_proj"))
        self.places = nn.Parameter(torch.randn(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k, v = (getattr(self, name)(x) for name in self.names)
        places = self.places[: 2 * length]
        index = (torch.arange(length)[:, None] - torch.arange(length) + length).expand(len(x), -1, -1)
        to_places = (q @ self.key_proj(places).mT).gather(-1, index)
        of_places = (k @ self.query_proj(places).mT).gather(-1, index).mT
        return self.out((q @ k.mT + to_places + of_places).softmax(-1) @ v)


class Absorbed(nn.Module):
    """The keys' weights are folded into the queries, which are scored against latents."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.k_up, self.v_up = nn.Linear(4, WIDTH, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.down(x)
        return self.v_up((self.q_proj(x) @ self.k_up.weight @ latents.mT).softmax(-1) @ latents)


class OfOneBase(nn.Module):
    """Queries and keys of one projection, scaled and moved apart (a gated attention unit)."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.to_v, self.gate = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scales, self.offsets = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.base(x) * scale + offset for scale, offset in zip(self.scales, self.offsets, strict=True))
        return self.gate(x) * ((q @ k.mT).softmax(-1) @ self.to_v(x))


class OfOneKey(Attention):
    """Queries and keys are one projection."""

    def __init__(self) -> None:
        super().__init__(attended)
        self.k_proj = self.q_proj


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, v, k = self.qkv(x).chunk(3, -1)
        return attended(q, k, v)


class Mixing(nn.Module):
    """Receptance, keys and values without a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.receptance, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.receptance(x).sigmoid() * self.value(self.key(x).relu().square())


class Memory(nn.Module):
    """A table of keys and one of values, which a query looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.keys, self.values = nn.Parameter(torch.randn(16, WIDTH)), nn.Parameter(torch.randn(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.keys.T).softmax(-1) @ self.values


class OfCritic(Attention):
    """Has a head named value beside attention of its own names."""

    def __init__(self) -> None:
        super().__init__(attended, ("wq", "wk", "wv"))
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = super().forward(x)
        return hidden + self.value(hidden)


class Motion(nn.Module):
    """Velocity, kernel and quantizer by their first letters, in softmax over three kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.k, self.q = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.k(x).softmax(-1)
        return self.q(x) + self.v(x) * kernels[..., :1]


class Additive(nn.Module):
    """Scores sums of queries and keys, of which a last map named v makes a number (arXiv 1409.0473)."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.w_v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.W_q(x)[:, :, None] + self.W_k(x)[:, None]).tanh()
        return self.w_v(hidden).squeeze(-1).softmax(-1) @ x


class Shortened(Attention):
    """Keys and values are mixed along the sequence before they are read (arXiv 2006.04768)."""

    def __init__(self) -> None:
        super().__init__(attended, ("to_q", "to_k", "to_v"))
        self.proj_k, self.proj_v = (nn.Parameter(torch.randn(64, 6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (getattr(self, name)(x) for name in self.names)
        k = torch.einsum("bsd,sn->bnd", k, self.proj_k[: x.shape[1]])
        v = torch.einsum("bsd,sn->bnd", v, self.proj_v[: x.shape[1]])
        return self.out((q @ k.mT).softmax(-1) @ v)


class TalkingHeads(Attention):
    """Heads are mixed before and behind the softmax."""

    def __init__(self) -> None:
        super().__init__(self.talked)
        self.before, self.behind = (nn.Parameter(torch.randn(HEADS, HEADS)) for _ in range(2))

    def talked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhqk,hg->bgqk", q @ k.mT, self.before)
        return torch.einsum("bhqk,hg->bgqk", scores.softmax(-1), self.behind) @ v


class FromTheFirst(nn.Module):
    """Later layers add the values of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Crossed(), Crossed()

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.first(x, x)
        layer = self.second
        values = layer.to_v(y) + self.first.to_v(x)
        return y + (layer.to_q(y) @ layer.to_k(y).mT).softmax(-1) @ values
