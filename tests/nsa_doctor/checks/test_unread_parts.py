"""Parts without parameters that nothing reads are found where nothing does their work; leftovers are not."""

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


@pytest.mark.parametrize("make", [Attends, Widens, Norms, SecondNormLeftOut, Unordered], ids=lambda make: make.__name__)
@pytest.mark.parametrize("is_doubled", [False, True], ids=["alone", "in layers"])
def test_a_part_whose_work_nothing_does_is_found(make: Callable[[], nn.Module], is_doubled: bool) -> None:
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


@pytest.mark.parametrize(
    "make",
    [Child, Base, lambda: Reads("any"), Iterates, Listed, Embedded, Derived],
    ids=["parent", "base", "reads", "iterates", "listed", "other positions", "derived"],
)
def test_parts_that_something_may_read_are_no_finding(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


@pytest.mark.parametrize("make", [Child, Base, lambda: Reads("any"), Iterates, Listed, Derived])
def test_parts_that_something_may_read_are_no_note(make: Callable[[], nn.Module]) -> None:
    assert examined(make).notes == ()
