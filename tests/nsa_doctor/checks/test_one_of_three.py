"""A projection of queries, keys or values that is left out beside the other two is found, whoever else names it."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Attention(nn.Module):
    """Which may be asked for its keys by another method."""

    def __init__(self, names: tuple[str, str, str], left_out: int = -1) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(WIDTH, WIDTH))
        self.names, self.left_out = names, left_out

    def keys(self, x: Tensor) -> Tensor:
        """For a cache."""
        return self.to_q(x) + self.to_k(x) + self.to_v(x) + self.k_proj(x) + self.key(x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x if self.left_out == at else self.get_submodule(name)(x) for at, name in enumerate(self.names))
        return (q @ k.mT).softmax(-1) @ v


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD208"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize(
    ("names", "left_out", "others"),
    [
        (("to_q", "to_k", "to_v"), 1, "to_q and to_v are used"),
        (("q_proj", "k_proj", "v_proj"), 1, "q_proj and v_proj are used"),
        (("query", "key", "value"), 1, "query and value are used"),
    ],
)
def test_the_third_that_is_left_out_is_found(names: tuple[str, str, str], left_out: int, others: str) -> None:
    (finding,) = examined(lambda: Attention(names, left_out)).findings
    assert f"{names[left_out]}.weight" in finding.message
    assert others in finding.message


class Shares(Attention):
    def __init__(self) -> None:
        super().__init__(("to_q", "to_k", "to_v"))

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x)
        return (q @ q.mT).softmax(-1) @ q


def test_two_that_are_left_out_are_no_slip() -> None:
    assert examined(Shares).findings == ()
