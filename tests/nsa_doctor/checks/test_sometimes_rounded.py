"""What is rounded in some calls alone is no rounding that a comparison may allow, and is found in its line."""

import linecache
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.precision import effective_precision, finest_precision
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8
Condition = Callable[[Tensor], bool]


class Attends(nn.Module):
    """An attention of two heads, whose operations are others for one row than for many; rounded under a condition."""

    def __init__(self, condition: Condition) -> None:
        super().__init__()
        self.proj, self.condition = nn.Linear(WIDTH, WIDTH), condition

    def forward(self, x: Tensor) -> Tensor:
        q = self.proj(x).unflatten(2, (2, -1)).transpose(1, 2)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = ((q @ q.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ q).transpose(1, 2).flatten(2)
        if self.condition(x):
            y = y.bfloat16().to(y.dtype)  # rounded
        return y


def subject_of(condition: Condition) -> Subject:
    return small_subject(lambda: Attends(condition), width=WIDTH, max_length=80)


BY_ROWS: dict[str, Condition] = {
    "one row": lambda x: len(x) == 1,
    "many": lambda x: len(x) > 1,
    "three": lambda x: len(x) == 3,
    "even": lambda x: len(x) % 2 == 0,
}


@pytest.mark.parametrize("condition", BY_ROWS)
def test_by_the_number_of_rows(condition: str) -> None:
    (finding,) = run_check(registry.load("FWD204"), subject_of(BY_ROWS[condition])).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# rounded\n"), finding


def test_without_gradients_alone() -> None:
    (finding,) = run_check(registry.load("FWD212"), subject_of(lambda x: not torch.is_grad_enabled())).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# rounded\n"), finding


BY_VALUES: dict[str, tuple[str, Condition]] = {
    "all of it negative": ("FWD203", lambda x: bool((x < 0).all())),
    "all of it small": ("FWD203", lambda x: bool(x.abs().max() < 1e-3)),
    "all of it large": ("FWD203", lambda x: bool(x.abs().mean() > 10)),
    "a value like it somewhere": ("FWD202", lambda x: bool((x[..., 0] > 1.5).any())),
}


@pytest.mark.parametrize("condition", BY_VALUES)
def test_by_the_values_of_the_input(condition: str) -> None:
    code, holds = BY_VALUES[condition]
    (finding,) = run_check(registry.load(code), subject_of(holds)).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# rounded\n"), finding


@pytest.mark.parametrize("code", ["FWD201", "FWD202", "FWD203", "FWD204", "FWD205", "FWD206", "FWD212"])
def test_what_is_always_rounded_is_allowed_for(code: str) -> None:
    assert run_check(registry.load(code), subject_of(lambda x: True)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("condition", "of_the_pass", "finest"),
    [
        (lambda x: True, torch.bfloat16, torch.bfloat16),
        (lambda x: False, torch.float64, torch.float64),
        (lambda x: len(x) == 3, torch.bfloat16, torch.float64),
        (lambda x: x.shape[1] % 2 == 0, torch.bfloat16, torch.float64),
        (lambda x: not torch.is_grad_enabled(), torch.bfloat16, torch.float64),
    ],
    ids=["always", "never", "rows", "length", "gradients"],
)
def test_the_finest_of_passes_like_one_another(
    condition: Condition, of_the_pass: torch.dtype, finest: torch.dtype
) -> None:
    sp = built(subject_of(condition), dtype="float64")
    x = sp.input(16, 3)
    with torch.no_grad():
        assert effective_precision(sp, x).dtype == of_the_pass
    assert finest_precision(sp, x).dtype == finest


def test_a_pass_that_is_refused_is_passed_over() -> None:
    def only_three(x: Tensor) -> bool:
        if len(x) != 3:
            raise RuntimeError("three rows only")
        return True

    sp = built(subject_of(only_three), dtype="float64")
    assert finest_precision(sp, sp.input(16, 3)).dtype == torch.bfloat16


class Filters(nn.Module):
    """Keeps what it makes of the lowest frequencies in a spectrum of its own, of single precision."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x, dim=1)
        kept = torch.zeros(spectrum.shape, dtype=torch.complex64)
        kept[:, :3] = spectrum[:, :3]
        return torch.fft.irfft(kept, n=x.shape[1], dim=1).to(x.dtype)


def test_what_is_stored_in_something_narrower_is_rounded() -> None:
    subject = replace(subject_of(lambda x: False), build=lambda seed: Filters())
    sp = built(subject, dtype="float64")
    assert effective_precision(sp, sp.input(19)).dtype == torch.float32
    assert effective_precision(built(subject), built(subject).input(19)).dtype == torch.float32
    plain = built(subject_of(lambda x: False), dtype="float64")
    assert effective_precision(plain, plain.input(19)).dtype == torch.float64
