"""What makes a cache is told the module's device and dtype, and what has one mode alone is refused."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8
REQUEST = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), declared=("causal",))


class Sums(nn.Module):
    """Running sums of a layer's outputs, kept from token to token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def new_cache(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(batch, DIM, device=device, dtype=dtype)

    def step(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        y = cache[:, None] + self.layer(x).cumsum(1)
        return y, y[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x, self.new_cache(len(x), x.device, x.dtype))[0]


class OnTheHost(Sums):
    """Makes its cache where nobody asked."""

    def new_cache(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(batch, DIM, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).cumsum(1)


def test_what_makes_a_cache_is_given_the_device_and_the_dtype() -> None:
    subject = adapt(REQUEST, Sums)
    assert subject.step is not None
    module = subject.build(0).double()
    assert subject.prefill is not None
    _, cache = subject.prefill(module, torch.randn(2, 3, DIM, dtype=torch.float64))
    assert cache.dtype == torch.float64
    assert run_check(registry.load("FWD225"), subject).verdict is Verdict.PASS


def test_a_cache_that_is_made_elsewhere_all_the_same_is_found() -> None:
    subject = adapt(REQUEST, OnTheHost)
    (finding,) = run_check(registry.load("FWD225"), subject).findings
    assert "decoding raises" in finding.message


class OfOneMode(Sums):
    def train(self, mode: bool = True) -> nn.Module:
        raise NotImplementedError("Calling train() is not supported yet.")


def test_what_has_one_mode_alone_is_refused() -> None:
    with pytest.raises(SubjectUnusableError, match=r"in one mode for ever \(NotImplementedError: Calling train\(\)"):
        adapt(REQUEST, OfOneMode)
