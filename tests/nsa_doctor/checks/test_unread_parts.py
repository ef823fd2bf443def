"""A softmax that nothing reads is found where raw scores weigh without it; whatever may be left over is a note."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    return run_check(registry.load("FWD268"), small_subject(make, width=DIM, max_length=64, **more))


class Attends(nn.Module):
    """Attention without a softmax, whatever it builds."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.unread_weigher = nn.Softmax(dim=-1)  # here

    def forward(self, x: Tensor) -> Tensor:
        """The softmax of scores is left out; `unread_weigher` is named here alone."""
        scores = self.q(x) @ self.k(x).mT
        return scores.tril() @ self.v(x)


class AttendsByHeads(Attends):
    """Several heads, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_weigher = nn.Softmax(dim=-1)  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return (torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.5 @ v).transpose(1, 2).flatten(2)


class AttendsMasked(Attends):
    """Masked, biased, and divided by the root of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_weigher = nn.Softmax(dim=-1)  # here

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / DIM**0.5
        mask = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        return scores.masked_fill(mask, 0.0) @ self.v(x)


def retained(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Decay in place of a softmax."""
    place = torch.arange(q.shape[1])
    return (q @ k.mT * (0.9 ** (place[:, None] - place).clamp(min=0)).tril()) @ v


class Weighs(nn.Module):
    """Attention without a softmax, that is meant or not."""

    def __init__(self, how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.unread_weigher, self.how = nn.Softmax(dim=-1), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.q(x), self.k(x), self.v(x))


def test_scores_of_any_product_are_found_by_the_same_module() -> None:
    assert len(examined(lambda: Weighs(lambda q, k, v: (q @ k.mT / DIM) @ v)).findings) == 1


class OfExperts(nn.Module):
    """Two products with what is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(2, 4, 16)), nn.Parameter(torch.randn(2, 16, 4))
        self.unread_weigher = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.einsum("bnhd,hde->bnhe", x.unflatten(-1, (2, 4)), self.up)
        return x + torch.einsum("bnhe,hed->bnhd", inner, self.down).flatten(-2)


class OfTokens(nn.Module):
    """Learnt weights of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.unread_weigher = nn.Parameter(torch.randn(64, 64)), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.mix[: x.shape[1], : x.shape[1]]
        return weights @ (weights @ x)


class Widens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.unread_curve = nn.GELU()  # here

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unread_ln = nn.LayerNorm(DIM, elementwise_affine=False)  # here
        self.layer, self.relu = nn.Linear(DIM, DIM), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.layer(x))


class SecondNormLeftOut(nn.Module):
    """A block of two norms, of which the forward calls the first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False)
        self.unread_norm2 = nn.LayerNorm(DIM, elementwise_affine=False)  # here
        self.mix, self.layer, self.relu = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        return x + self.relu(self.layer(x))


class RotaryEmbedding(nn.Module):
    """Rotary angles by size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(DIM // 2), persistent=False)

    def forward(self, length: int) -> Tensor:
        return torch.arange(length)[:, None] * self.inv_freq


class Unordered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unread_turn = RotaryEmbedding()  # here
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix((x @ x.mT).softmax(-1) @ x)


class Doubled(nn.Module):
    """A fault in each of two layers."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("make", [Attends, AttendsByHeads, AttendsMasked], ids=lambda make: make.__name__)
@pytest.mark.parametrize("is_doubled", [False, True], ids=["alone", "in layers"])
def test_a_softmax_without_which_raw_scores_weigh_is_found(make: Callable[[], nn.Module], is_doubled: bool) -> None:
    (finding,) = examined((lambda: Doubled(make)) if is_doubled else make).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
    assert "unread_" in finding.message
    assert ("(and 1 more)" in finding.message) == is_doubled


class Leftover(nn.Module):
    """One part that nothing reads, beside what does the same."""

    def __init__(self, part: nn.Module, work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.work = nn.Linear(DIM, DIM), work
        self.unread_leftover = part

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.work(x))


class LayerNormed(nn.Module):
    """A norm by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_leftover = nn.LayerNorm(DIM, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (DIM,))


class SecondNorm(nn.Module):
    """A norm by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_leftover = nn.RMSNorm(DIM, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt()


class OtherBranch(nn.Module):
    """A norm and a projection of a branch that this forward leaves out as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_out, self.proj_out = nn.LayerNorm(DIM, elementwise_affine=False), nn.Linear(DIM, DIM)
        self.unread_norm_out, self.unread_proj_out = nn.LayerNorm(DIM, elementwise_affine=False), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj_out(self.norm_out(x))


MEANT: dict[str, Callable[[], nn.Module]] = {
    "retention": lambda: Weighs(retained),
    "by how many": lambda: Weighs(lambda q, k, v: (q @ k.mT / q.shape[1]) @ v),
    "by the root of how many": lambda: Weighs(lambda q, k, v: (q @ k.mT * q.shape[1] ** -0.5) @ v),
    "of channels": lambda: Weighs(lambda q, k, v: q @ (k.mT @ v)),
    "normed after": lambda: Weighs(lambda q, k, v: F.normalize(q @ k.mT @ v, dim=-1)),
    "normed before": lambda: Weighs(lambda q, k, v: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT @ v),
    "by what is learnt": OfTokens,
    "of experts": OfExperts,
}


@pytest.mark.parametrize("make", MEANT.values(), ids=MEANT)
def test_a_softmax_beside_what_does_without_it_is_a_note(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.findings == ()
    assert [each.count("unread_weigher: Softmax is built") for each in result.notes] == [1]


@pytest.mark.parametrize("make", [Widens, Norms, SecondNormLeftOut, Unordered], ids=lambda make: make.__name__)
def test_any_other_part_is_a_note(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.findings == ()
    assert [each.count("; it may be left over") for each in result.notes] == [1]


def linear_attention(x: Tensor) -> Tensor:
    keys = x.square()
    return keys @ (keys.mT @ x) / (keys @ keys.sum(1)[..., None])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Leftover(nn.Softmax(-1), lambda x: (x @ x.mT).softmax(-1) @ x),
        lambda: Leftover(nn.Softmax(-1), lambda x: F.scaled_dot_product_attention(x, x, x)),
        lambda: Leftover(nn.Softmax(-1), linear_attention),
        lambda: Leftover(nn.Softmax(-1), lambda x: (x @ x.mT).relu() / x.shape[1] @ x),
        lambda: Leftover(nn.LogSoftmax(-1), lambda x: x),
        lambda: Leftover(nn.GELU(), F.gelu),
        lambda: Leftover(nn.ReLU(), F.silu),
        lambda: Leftover(nn.ReLU(), lambda x: x.relu().square()),
        LayerNormed,
        SecondNorm,
        OtherBranch,
    ],
    ids=[
        "softmax",
        "fused",
        "linear",
        "relu attention",
        "logits",
        "gelu",
        "another",
        "squared",
        "norm",
        "by hand",
        "branch",
    ],
)
def test_what_is_left_over_beside_what_does_its_work_is_a_note(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.findings == ()
    assert [" is built, no source reads it by that name" in each for each in result.notes] == [True]
