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


class Parent(nn.Module):
    """Builds for its own forward what a child's leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.parents_curve = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.parents_curve(self.mix(x))


class Child(Parent):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Base(nn.Module):
    """Holds what those derived from it read."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.read_below = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Derived(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.read_below(x))


class Reads(nn.Module):
    """Reads a part by any other way than by calling it in the passes that are made."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.mix, self.way = nn.Linear(DIM, DIM), way
        self.by_name, self.by_parts_7, self.handed, self.at_times, self.from_outside = (nn.GELU() for _ in range(5))
        self.given = [self.handed]

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 1000:
            number = 7
            return self.at_times(getattr(self, "by_name")(getattr(self, f"by_parts_{number}")(x)))  # noqa: B009
        return self.mix(x)


class Iterates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.one_of_all = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children() if x.shape[1] > 1000 else ():
            x = part(x)
        return self.mix(x)


class Listed(nn.Module):
    """Parts in containers, an Identity, a dropout, and one that is called under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, curve = nn.Linear(DIM, DIM), nn.GELU()
        self.also_the_curve = curve
        self.net = nn.Sequential(nn.Linear(DIM, DIM), curve)
        self.unread_identity, self.unread_dropout = nn.Identity(), nn.Dropout(0.1)
        self.unread_pool, self.unread_loss = nn.AdaptiveAvgPool1d(1), nn.CrossEntropyLoss()
        self.unread_list = nn.ModuleList([nn.GELU()])

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.net(x))


class OfMany(nn.Module):
    """Reads by a name that nobody can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.one_of_many, self.order = nn.Linear(DIM, DIM), nn.GELU(), ["mix"]

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = getattr(self, name)(x)
        return x


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.joined_curve = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.picked("x" + "y")(x) if x.shape[1] > 1000 else self.mix(x)

    def picked(self, kind: str) -> Any:
        return getattr(self, "_".join(["joined", kind]))


class Delegates(nn.Module):
    """Reads of another what it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Delegated()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return self.delegated_curve(y) if x.shape[1] > 1000 else y


class Delegated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.delegated_curve = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Matched(nn.Module):
    """Reads in a pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.matched_curve = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        match self if x.shape[1] > 1000 else None:
            case Matched(matched_curve=curve):
                return curve(self.mix(x))
        return self.mix(x)


class Grandparent(nn.Module):
    """Holds what a grandchild alone reads."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.grandchilds_curve = nn.Linear(DIM, DIM), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


Alias = Grandparent


class Between(Alias):
    pass


class Grandchild(Between):
    def forward(self, x: Tensor) -> Tensor:
        return self.grandchilds_curve(self.mix(x))


class Twice(nn.Module):
    """One norm by two names, of which one is called."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.LayerNorm(DIM, elementwise_affine=False)
        self.net = nn.Sequential(nn.Linear(DIM, DIM), norm)
        self.norm_by_two_names = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def calls_from_outside(module: Reads, x: Tensor) -> Tensor:
    """As a pipeline beside the model does."""
    return module.from_outside(module(x))


class Embedded(nn.Module):
    """Positions by a table, and rotary ones that are left over."""

    def __init__(self) -> None:
        super().__init__()
        self.position_ids, self.unread_turn = nn.Embedding(64, DIM), RotaryEmbedding()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position_ids(torch.arange(x.shape[1]))


READING = (OfMany, Joined, Delegates, Matched, Grandparent, Twice)


@pytest.mark.parametrize(
    "make",
    [Child, Base, lambda: Reads("any"), Iterates, Listed, Embedded, Derived, *READING],
    ids=["parent", "base", "reads", "iterates", "listed", "other positions", "derived", *(k.__name__ for k in READING)],
)
def test_parts_that_something_may_read_are_no_finding(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


@pytest.mark.parametrize("make", [Child, Base, lambda: Reads("any"), Iterates, Listed, Derived, *READING])
def test_parts_that_something_may_read_are_no_note(make: Callable[[], nn.Module]) -> None:
    assert examined(make).notes == ()
