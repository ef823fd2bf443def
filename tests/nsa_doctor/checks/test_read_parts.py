"""Parts that something may read by any other way than by calling them are neither found nor noted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nsa_doctor.checks.test_unread_parts import DIM, RotaryEmbedding, examined


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
