"""Attention whose queries and keys are divided by their lengths; `# here` is the line that does it over the tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS = 16, 2


class Cosine(nn.Module):
    """Queries and keys [B, H, S, D] of one length each, over their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.scale = nn.Parameter(torch.full((HEADS, 1, 1), 4.0))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.scale * (q @ k.mT)).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x)) for each in (self.query, self.key, self.value))
        return self.out(self.attend(*self.normed(q, k), v).transpose(1, 2).flatten(2))


class OfQueries(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q, dim=2)  # here
        return q, F.normalize(k, dim=-1)


class OfKeys(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        k = F.normalize(k, dim=-2)  # here
        return F.normalize(q, dim=-1), k


class ByHand(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = q / torch.linalg.vector_norm(q, dim=-2, keepdim=True)  # here
        return q, k / torch.linalg.vector_norm(k, dim=-1, keepdim=True)


class ByRoots(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = q * (q.square().sum(-2, keepdim=True) + 1e-6).rsqrt()  # here
        return q, k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class BesideANorm(Cosine):
    """The keys go through a norm with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.key_norm = nn.RMSNorm(DIM // HEADS)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q, dim=-2)  # here
        return q, self.key_norm(k)


class BeforeTheHeads(Cosine):
    """Before heads and tokens change their places: [B, S, H, D]."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q.transpose(1, 2), dim=1)  # here
        return q.transpose(1, 2), F.normalize(k, dim=-1)


class BeforeTheSplit(Cosine):
    """Of all heads together, over the axis that `normalize` takes where it is told none."""

    def split(self, x: Tensor) -> Tensor:
        return x

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q)  # here
        return super().split(q), F.normalize(super().split(k), dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k, super().split(v))


def turned(x: Tensor) -> Tensor:
    """By an angle that grows with the token."""
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.5, 0.2, 0.1], dtype=x.dtype)
    one, other = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1)


class BeforeATurn(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q, dim=-2)  # here
        return turned(q), turned(F.normalize(k, dim=-1))


class Fused(Cosine):
    """By what torch has for the whole."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q, dim=-2)  # here
        return q, F.normalize(k, dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=4.0)


class BySums(Cosine):
    """By einsum, and with one key more than there are tokens."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(q, dim=-2)  # here
        return q, F.normalize(F.pad(k, (0, 0, 1, 0), value=1.0), dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", weights, F.pad(v, (0, 0, 1, 0)))


class OfChannels(Cosine):
    """Cross-covariance attention: channels attend to channels, queries and keys are normed over the tokens."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q.mT, dim=-1), F.normalize(k.mT, dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((self.scale * (q @ k.mT)).softmax(-1) @ v.mT).mT


class OverTokens(Cosine):
    """Both over the tokens, whatever for."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-2), F.normalize(k, dim=-2)


class Instances(Cosine):
    """Keys with a mean of zero and a variance of one over the tokens, as an instance norm gives them."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1), (k - k.mean(-2, keepdim=True)) / k.std(-2, keepdim=True)


class Linear(Cosine):
    """Softmax of queries over channels and of keys over tokens (efficient attention)."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q.softmax(-1), k.softmax(-2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ (k.mT @ v)


class Summary(Cosine):
    """Keys over the tokens that they are summed over, queries over the channels: no two that are compared."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1), F.normalize(k, dim=-2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ (k.mT @ v)


class KeysAlone(Cosine):
    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, F.normalize(k, dim=-1)


class Afterwards(Cosine):
    """Over the tokens first, and then over the channels."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(F.normalize(q, dim=-2), dim=-1), F.normalize(k, dim=-1)


class Mapped(Cosine):
    """What the queries are made of is normed over the tokens, not they."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(F.normalize(x, dim=1))
        return output


class Masked(Cosine):
    """Multiplied by ones, and by what is the same for all."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * torch.ones_like(q[..., :1]) * 0.5, F.normalize(k, dim=-1)


class OfTable(Cosine):
    """Scores of the queries with a table of directions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(HEADS, 5, DIM // HEADS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shares: Any = (q @ F.normalize(self.table, dim=-1).mT).softmax(-1)
        return super().attend(q, k, v) * shares.amax(-1, keepdim=True)


FAULTY = (OfQueries, OfKeys, ByHand, ByRoots, BesideANorm, BeforeTheHeads, BeforeTheSplit, BeforeATurn, Fused, BySums)
HEALTHY = (Cosine, OfChannels, OverTokens, Instances, Linear, Summary, KeysAlone, Afterwards, Mapped, Masked, OfTable)
