"""A share of dropout that nothing applies is found with its holder; every way to apply one is silent."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8
Attend = Callable[["Attention", Tensor], Tensor]


class Attention(nn.Module):
    """Attends by `attend(self, x)`; holds a dropout of 0.1, or `share` as a number."""

    def __init__(self, attend: Attend, share: float | None = None) -> None:
        super().__init__()
        self.mix, self.attend = nn.Linear(DIM, DIM), attend
        if share is None:
            self.dropout = nn.Dropout(0.1)
        else:
            self.attention_dropout = share

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.attend(self, x))


class Layers(nn.Module):
    """Two of them, behind a dropout that is applied."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.before, self.layers = nn.Dropout(0.2), nn.ModuleList(make() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


class Forgets(nn.Module):
    """Names one of its two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.first, self.second = nn.Linear(DIM, DIM), nn.Dropout(0.1), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.mix(x))


class Given(nn.Module):
    """Is given a share and reads none of it."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class HandsOn(nn.Module):
    """Is given a share that a function inside its constructor hands on."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(lambda _: Attention(by_its_number, dropout), range(2)))  # noqa: C417

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x))


def without(layer: Attention, x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x, dropout_p=0.0)


def with_its_share(layer: Attention, x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x, dropout_p=layer.dropout.p if layer.training else 0.0)


def by_its_number(layer: Attention, x: Tensor) -> Tensor:
    return dropout(without(layer, x), layer.attention_dropout, layer.training)


def by_calling(layer: Attention, x: Tensor) -> Tensor:
    return layer.dropout(without(layer, x))


def by_chance_of_its_own(layer: Attention, x: Tensor) -> Tensor:
    return x if layer.training and random.random() < layer.attention_dropout else without(layer, x)


def examined(make: Callable[[], nn.Module]) -> Result:
    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="dropping",
        build=lambda _seed: make(),
        forward=forward,
        input="embeddings",
        width=DIM,
        packages=("tests",),
        profile="smoke",
    )
    return run_check(registry.load("FWD231"), subject)


FAULTY = {
    "a dropout": (lambda: Layers(lambda: Attention(without)), "0.1 that layers.0 (and 1 more of its class) holds"),
    "a number": (lambda: Layers(lambda: Attention(without, 0.2)), "0.2 that layers.0 (and 1 more of its class) holds"),
    "one of two": (lambda: Layers(Forgets), "0.3 that layers.0 (and 1 more of its class) holds as second"),
    "an argument": (
        lambda: Layers(lambda: Given(dropout=0.1)),
        "0.1 that layers.0 (and 1 more of its class) is given as dropout, and does not read, is not applied",
    ),
    "by itself": (lambda: Attention(without), "0.1 that the module holds as dropout"),
}


@pytest.mark.parametrize(("make", "said"), FAULTY.values(), ids=FAULTY.keys())
def test_a_share_that_nothing_applies_is_found(make: Callable[[], nn.Module], said: str) -> None:
    (finding,) = examined(make).findings
    assert finding.message.startswith(f"the dropout of {said}")
    expected = {"as second": "Forgets", "is given": "Given"}
    assert finding.where.module_class == next((name for part, name in expected.items() if part in said), "Attention")


def eval_inside() -> nn.Module:
    """A part that is kept in evaluation drops nothing on purpose."""

    class Frozen(Attention):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train(False)

    return Layers(lambda: Frozen(without))


def held_above() -> nn.Module:
    """The share is held once more by what hands it on."""
    made = Layers(lambda: Attention(by_calling))
    made.dropout_rate = 0.1
    return made


def never_called() -> nn.Module:
    made = Layers(lambda: Attention(by_calling))
    made.other = Attention(without)
    return made


HEALTHY = {
    "its share handed on": lambda: Layers(lambda: Attention(with_its_share)),
    "by its number": lambda: Layers(lambda: Attention(by_its_number, 0.3)),
    "an argument handed on": lambda: HandsOn(0.3),
    "an argument of zero": lambda: Layers(lambda: nn.Sequential(Given(), nn.Dropout(0.1))),
    "called": lambda: Layers(lambda: Attention(by_calling)),
    "Python's chance": lambda: Attention(by_chance_of_its_own, 0.3),
    "frozen": eval_inside,
    "held above": held_above,
    "a part that is never called": never_called,
    "a layer of torch": lambda: nn.TransformerEncoderLayer(DIM, 2, 16, 0.1, batch_first=True),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_share_that_is_applied_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_a_share_of_zero_is_none() -> None:
    result = examined(lambda: Attention(without, 0.0))
    assert result.verdict is Verdict.SKIP
    assert "no share of dropout" in result.reason


def test_the_share_of_conditions_that_are_left_out_is_none_of_a_call_without_conditions() -> None:
    class Guided(nn.Linear):
        """Leaves its caption out of one call in ten, where it is given one."""

        def __init__(self) -> None:
            super().__init__(DIM, DIM)
            self.cond_drop_prob = 0.1

        def forward(self, x: Tensor, caption: Tensor | None = None) -> Tensor:
            if caption is not None and torch.rand(()) > self.cond_drop_prob:
                x = x + caption
            return super().forward(x)

    assert "no share of dropout" in examined(Guided).reason


@pytest.mark.parametrize("returns", [True, False])
def test_a_share_that_waits_for_an_argument_is_none_of_a_call_without_it(returns: bool) -> None:
    class Labels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.rows = 0.1, nn.Parameter(torch.ones(3, DIM))

        def row(self, label: Tensor | None, x: Tensor) -> Tensor:
            if label is None:
                label = torch.zeros(x.shape[0], dtype=torch.long)
            elif self.training:
                label = torch.where(torch.rand(x.shape[0]) < self.drop, torch.zeros_like(label), label)
            return self.rows[label]

        def row_or_none(self, label: Tensor | None, x: Tensor) -> Tensor:
            if label is None:
                return self.rows[torch.zeros(x.shape[0], dtype=torch.long)]
            return self.rows[torch.where(torch.rand(x.shape[0]) < self.drop, torch.zeros_like(label), label)]

        def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
            return x + (self.row_or_none if returns else self.row)(label, x)[:, None]

    assert "no share of dropout" in examined(Labels).reason


@pytest.mark.parametrize("returns", [True, False])
def test_a_share_on_the_side_without_an_argument_is_found(returns: bool) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.layer = 0.1, nn.Linear(DIM, DIM)

        def with_it(self, x: Tensor, share: float) -> Tensor:
            return self.layer(x)

        def early(self, x: Tensor, cache: Tensor | None) -> Tensor:
            if cache is not None:
                return self.layer(x + cache)
            return self.with_it(x, self.dropout)

        def side(self, x: Tensor, cache: Tensor | None) -> Tensor:
            if cache is None:
                return self.with_it(x, self.dropout)
            else:
                return self.layer(x + cache)

        def forward(self, x: Tensor, cache: Tensor | None = None) -> Tensor:
            return (self.early if returns else self.side)(x, cache)

    (finding,) = examined(Cached).findings
    assert "the dropout of 0.1 that the module holds as dropout is not applied" in finding.message


def test_what_holds_a_share_that_its_part_forgets_is_not_named_beside_it() -> None:
    def make() -> nn.Module:
        made = nn.Sequential(Attention(without))
        made.dropout = 0.1
        return made

    (finding,) = examined(make).findings
    assert finding.where.module == "0"


def test_random_numbers_do_not_depend_on_the_check() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    examined(lambda: Attention(by_calling))
    assert torch.equal(before, torch.get_rng_state())
