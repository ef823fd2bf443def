"""What shows beside rows of padding, in a batch of a certain size, with a part frozen or late in decoding is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Layer(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)


class TurnsBesidePadding(Layer):
    def forward(self, x):
        return super().forward(x.flip(-1) if bool((x == 0).all(-1).any()) else x)


class TurnsLastOfSeven(Layer):
    def forward(self, x):
        y = super().forward(x)
        return torch.cat((y[:-1], y[-1:] * 2)) if len(x) == 7 else y


class LosesGradientBesideFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Layer(), Layer(), Layer()

    def forward(self, x):
        y = self.first(x) + self.second(x)
        return self.third(y if self.second.weight.requires_grad else y.detach())


def examined(make: Callable[[], nn.Module], code: str, **seams: Callable[..., object]) -> Result:
    made = Subject(name="tests", build=lambda seed: make(), forward=lambda m, x: m(x), input="embeddings", width=8)
    made = replace(made, packages=("tests",), max_length=300, profile="quick", **seams)
    return run_check(registry.load(code), made)


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (TurnsBesidePadding, "FWD201", "zeros in tokens"),
        (TurnsBesidePadding, "FWD203", "other rows of zeros"),
        (TurnsBesidePadding, "FWD204", "padded with zeros"),
        (TurnsLastOfSeven, "FWD204", "row 6 of 7"),
        (LosesGradientBesideFrozen, "GRD107", "second frozen"),
    ],
)
def test_what_shows_there_alone_is_found(make: Callable[[], nn.Module], code: str, words: str) -> None:
    (finding,) = examined(make, code).findings
    assert words in finding.message


class Sums(nn.Linear):
    """A running sum, whose step forgets what it has read once that is much."""

    def __init__(self, most):
        super().__init__(8, 8)
        self.most = most

    def prefill(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
        y = super().forward(x).cumsum(1)
        return y, (y[:, -1:], x.shape[1])

    def step(self, x: Tensor, state: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, int]]:
        total, count = state
        y = total * (count < self.most) + super().forward(x).cumsum(1)
        return y, (y[:, -1:], count + x.shape[1])

    def forward(self, x):
        return self.prefill(x)[0]


@pytest.mark.parametrize(("most", "is_found"), [(200, True), (10**6, False)])
def test_decoding_is_compared_beyond_short_windows(most: int, is_found: bool) -> None:
    seams = {"prefill": lambda m, x: m.prefill(x), "step": lambda m, x, state: m.step(x, state)}
    findings = examined(lambda: Sums(most), "DEC101", **seams).findings
    assert [finding.evidence["first token"] for finding in findings] == [most] * is_found
