"""A limit far beyond what is examined is no memory of earlier calls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH, POSITIONS = 8, 4096


class Positioned(nn.Module):
    """Adds a row of a table to each token; `is_kept` makes it forget the table's end once it has seen 2,000 tokens."""

    def __init__(self, *, is_kept: bool = False) -> None:
        super().__init__()
        self.mix, self.table = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(POSITIONS, WIDTH))
        self.is_kept, self.longest = is_kept, 0

    def forward(self, x: Tensor) -> Tensor:
        self.longest = max(self.longest, x.shape[1])
        rows = self.table[: x.shape[1]]
        if rows.shape[0] < x.shape[1]:
            raise IndexError(f"no position {x.shape[1]}")
        return self.mix(x + rows * (2.0 if self.is_kept and self.longest > x.shape[1] > 0 else 1.0))


def examined(**options: Any) -> Any:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Positioned(**options)

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=WIDTH, longest=65536)
    return run_check(registry.load("FWD210"), made)


def test_a_table_that_ends_beyond_what_is_examined_is_no_finding() -> None:
    assert (examined().verdict, examined().findings) == (Verdict.PASS, ())


def test_what_a_longer_call_leaves_behind_is() -> None:
    (finding,) = examined(is_kept=True).findings
    assert finding.evidence["cause"] == "step"


@pytest.mark.parametrize("is_narrow", [False, True])
def test_a_complex_tensor_is_as_narrow_as_its_parts(is_narrow: bool) -> None:
    from nsa_doctor.probes.model.built_module import built
    from nsa_doctor.probes.numerics.precision import effective_precision

    class Rotates(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            turned = torch.view_as_complex(super().forward(x).unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(turned.to(torch.complex64) if is_narrow else turned).flatten(2).to(x.dtype)

    subject = Subject(
        name="tests", build=lambda _: Rotates(8, 8), forward=lambda m, x: m(x), input="embeddings", width=8
    )
    sp = built(subject, dtype="float64")
    precision = effective_precision(sp, sp.input(16))
    assert precision.dtype == (torch.float32 if is_narrow else torch.float64)
