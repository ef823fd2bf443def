"""A value that every pass computes and nothing reads is a note; what may be read, kept or written to is none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH = 8


class Layer(nn.Linear):
    """A layer of tokens, followed by something that is given the layer too."""

    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.then, self.kept, self.wants_weights = then, None, False

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, super().forward(x))


def sums_for_nothing(module: nn.Module, y: Tensor) -> Tensor:
    summed = y.cumsum(1)  # noqa: F841
    return y.tanh()


def only_in_training(module: nn.Module, y: Tensor) -> Tensor:
    if module.training:
        noise = y.sin()  # noqa: F841
    return y


def takes_the_first(module: nn.Module, y: Tensor) -> Tensor:
    largest, where = y.max(-1, keepdim=True)  # noqa: RUF059
    values, _ = y.sort(-1)  # noqa: RUF059
    return y - largest


def may_return_weights(module: nn.Module, y: Tensor) -> Tensor:
    weights = y.softmax(-1)
    return weights if module.wants_weights else y


def keeps_weights(module: nn.Module, y: Tensor) -> Tensor:
    weights = y.softmax(-1)
    module.kept = weights.detach()
    return y


def writes_in_place(module: nn.Module, y: Tensor) -> Tensor:
    scaled = y.mul_(2)  # noqa: F841
    return y


def counts_up(module: nn.Module, y: Tensor) -> Tensor:
    total = y.sum()
    total += y.mean()
    return y


def discards(module: nn.Module, y: Tensor) -> Tensor:
    _unused = y.cumsum(1)
    return y


def examined(then: Callable[[nn.Module, Tensor], Tensor]) -> Result:
    subject = Subject(
        name="tests",
        build=lambda seed: (torch.manual_seed(seed), Layer(then))[1],
        forward=lambda module, x: module(x),
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )
    return run_check(registry.load("GRD213"), subject)


def test_a_variable_that_nothing_reads_is_a_note() -> None:
    result = examined(sums_for_nothing)
    (note,) = result.notes
    assert result.verdict is Verdict.PASS
    assert note.startswith("summed is computed in every pass, and nothing reads it (Layer at ")


@pytest.mark.parametrize(
    "then",
    [only_in_training, takes_the_first, may_return_weights, keeps_weights, writes_in_place, counts_up, discards],
)
def test_what_may_come_to_something_is_none(then: Callable[[nn.Module, Tensor], Tensor]) -> None:
    result = examined(then)
    assert (result.verdict, result.notes) == (Verdict.PASS, ())
