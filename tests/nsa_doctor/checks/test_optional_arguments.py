"""Optional arguments that reach other rows or later calls are found; those that stay with theirs are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Timed(nn.Module):
    """A layer whose answer depends on a time [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.to_shift = nn.Linear(WIDTH, WIDTH), nn.Linear(1, WIDTH)

    def times(self, t: Tensor, x: Tensor) -> Tensor:
        return t.reshape(-1).expand(len(x))

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        t = x.new_zeros(len(x)) if t is None else t
        return self.layer(x) + self.to_shift(self.times(t, x).to(x)[:, None, None])


class OfTheFirst(Timed):
    def times(self, t: Tensor, x: Tensor) -> Tensor:
        return t.reshape(-1)[0].expand(len(x))


class OfAll(Timed):
    def times(self, t: Tensor, x: Tensor) -> Tensor:
        return t.mean().expand(len(x))


class Labelled(nn.Module):
    """A layer beside a table of labels, of which the last is kept where it remembers."""

    def __init__(self, remembers: bool = False) -> None:
        super().__init__()
        self.layer, self.table, self.remembers, self.last = (
            nn.Linear(WIDTH, WIDTH),
            nn.Embedding(4, WIDTH),
            remembers,
            0,
        )

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        y = self.layer(x)
        if label is not None and self.remembers:
            self.last = 1
        return y + self.last if label is None else y + self.table(label)[:, None]


class Windowed(nn.Module):
    """A number of tokens that see each other."""

    def __init__(self, keeps: bool = False) -> None:
        super().__init__()
        self.layer, self.keeps, self.size = nn.Linear(WIDTH, WIDTH), keeps, 0

    def forward(self, x: Tensor, prefix_len: int | None = None) -> Tensor:
        size = self.size if prefix_len is None else prefix_len
        self.size = size if self.keeps else 0
        y = self.layer(x)
        return torch.cat((y[:, :size] + y[:, :size].mean(1, keepdim=True), y[:, size:]), 1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: object = None) -> Tensor:
        return self.layer(x)


class ByLayer(nn.Module):
    """Two layers, each with a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, kv_residuals: Tensor | None = None) -> Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x) if kv_residuals is None else layer(x) + kv_residuals[at]
        return x


class Conditioned(nn.Module):
    """A layer beside a condition [B, D], of all rows where it is `shared`."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.layer, self.to_shift, self.shared = nn.Linear(WIDTH, WIDTH), nn.Linear(6, WIDTH), shared

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        if cond is None:
            return self.layer(x)
        cond = cond.mean(0, keepdim=True).expand(len(x), -1) if self.shared else cond
        return self.layer(x) + self.to_shift(cond)[:, None]


class Attending(nn.Module):
    """Cross-attention to a context [B, L, D], with its rows laid out for heads."""

    def __init__(self, exchanged: bool = False) -> None:
        super().__init__()
        self.q, self.kv, self.exchanged = nn.Linear(WIDTH, WIDTH), nn.Linear(6, WIDTH), exchanged

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            return self.q(x)
        rows, length, heads = len(x), x.shape[1], 2
        q = self.q(x).view(rows, length, heads, -1).transpose(1, 2).flatten(0, 1)
        k = self.kv(context).unflatten(-1, (heads, -1))  # [B, L, H, C]
        k = k.transpose(1, 2).transpose(0, 1).flatten(0, 1) if self.exchanged else k.transpose(1, 2).flatten(0, 1)
        y = (q @ k.mT).softmax(-1) @ k
        return x + y.view(rows, heads, length, -1).transpose(1, 2).flatten(2)


class OfABank(Conditioned):
    """Attention to vectors [N, D] that all rows share."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            return self.layer(x)
        bank = self.to_shift(context)
        return x + (self.layer(x) @ bank.mT).softmax(-1) @ bank


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD258"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize("make", [OfTheFirst, OfAll])
def test_a_time_of_another_row_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "the argument t of other rows changes the answer for row" in finding.message
    assert finding.where.function == "times"


@pytest.mark.parametrize("make", [lambda: Conditioned(True), lambda: Attending(True)], ids=["mean", "exchanged"])
def test_a_vector_of_another_row_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "of other rows changes the answer for row" in finding.message
    assert finding.where.function == "forward"


def test_two_classes_are_labels_too() -> None:
    class Binary(Labelled):
        def __init__(self) -> None:
            super().__init__(True)
            self.table = nn.Embedding(2, WIDTH)

    (finding,) = examined(Binary).findings
    assert "the argument label changes later calls" in finding.message


def test_vectors_that_all_rows_share_are_none_for_each_row() -> None:
    assert "no optional argument" in examined(OfABank).reason


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: Labelled(True), "label"), (lambda: Windowed(True), "prefix_len")], ids=["label", "size"]
)
def test_what_later_calls_remember_is_found(make: Callable[[], nn.Module], name: str) -> None:
    (finding,) = examined(make).findings
    assert f"the argument {name} changes later calls that leave it out" in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("make", [Timed, Labelled, Windowed, Conditioned, Attending])
def test_an_argument_of_its_own_row_and_call_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_a_number_for_each_layer_is_none_for_each_row() -> None:
    assert "no optional argument" in examined(ByLayer).reason


def test_masks_and_states_are_for_others_to_ask_of() -> None:
    assert "no optional argument" in examined(Plain).reason
