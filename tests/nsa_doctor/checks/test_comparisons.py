"""Checks that compare two runs: each illness is found under its own code, in its own line, and healthy code is not."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

CODES = ("FWD201", "FWD202", "FWD203", "FWD204", "FWD205", "FWD206", "FWD207", "FWD208")
Faulty = Callable[..., LocalMeasurer]


def checked(faulty: Faulty, name: str, code: str, seed: int = 0) -> Result:
    subject = replace(faulty(name).subject, max_length=211, seed=seed)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sees_the_next_token", "FWD201"),
        ("drops_a_ragged_tail", "FWD202"),
        ("mixes_rows", "FWD203"),
        ("scaled_by_the_batch", "FWD204"),
        ("reads_raw_memory", "FWD205"),
        ("noisy_in_eval", "FWD206"),
        ("counts_calls", "FWD206"),
        ("other_in_training", "FWD207"),
        ("writes_into_its_input", "FWD208"),
    ],
)
def test_an_illness_is_found_in_its_line(faulty: Faulty, name: str, code: str) -> None:
    result = checked(faulty, f"comparisons:{name}", code)
    assert result.verdict is Verdict.FAIL
    where = result.findings[0].where
    assert where.module_class in ("Part", "_CountsCalls", "_OtherInTraining")
    if name not in ("drops_a_ragged_tail", "writes_into_its_input"):
        assert is_marked(where.file, where.line)


@pytest.mark.parametrize(
    "name", ["causal", "masked", "frozen", "token_model", "object_output", "no_parameters", "rude"]
)
@pytest.mark.parametrize("code", CODES)
def test_healthy_models_are_silent(faulty: Faulty, name: str, code: str) -> None:
    assert checked(faulty, f"healthy:{name}", code).verdict is Verdict.PASS


class _WritesIntoOdd(nn.Linear):
    """A linear layer that writes into the input of an odd kind."""

    def __init__(self, is_odd: Callable[[Tensor], bool]) -> None:
        super().__init__(8, 8)
        self.is_odd = is_odd

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.is_odd(x):
            x.mul_(0.5)
        return y


ODD_INPUTS: dict[str, Callable[[Tensor], bool]] = {
    "transposed": lambda x: not x.is_contiguous(),
    "bfloat16": lambda x: x.dtype == torch.bfloat16,
    "float64": lambda x: x.dtype == torch.float64,
    "rows": lambda x: x.shape[0] == 3,
}


@pytest.mark.parametrize("kind", ODD_INPUTS)
def test_an_input_that_is_overwritten_in_one_kind_alone_is_found(kind: str) -> None:
    subject = embedding_subject(lambda: _WritesIntoOdd(ODD_INPUTS[kind]))
    (finding,) = run_check(registry.load("FWD208"), subject).findings
    assert "of the input are overwritten by mul_" in finding.message
    assert finding.where.function == "forward"


def embedding_subject(make: Callable[[], nn.Module], seed: int = 0) -> Subject:
    return Subject(
        name="tests",
        build=lambda seed: make(),
        forward=lambda module, x: module(x),
        input="embeddings",
        width=8,
        max_length=80,
        seed=seed,
        packages=("tests",),
    )


class _DropsRows(nn.Linear):
    """Stochastic depth: most rows are kept and made larger, so that few draws differ."""

    def __init__(self, by_python: bool) -> None:
        super().__init__(8, 8)
        self.by_python = by_python

    def forward(self, x: Tensor) -> Tensor:
        draw = random.random() if self.by_python else float(torch.rand(()))
        return x + super().forward(x) * (float(draw > 0.05) / 0.95 if self.training else 1.0)


@pytest.mark.parametrize("by_python", [False, True])
def test_a_rare_draw_in_training_is_no_change_of_mode(by_python: bool) -> None:
    subject = embedding_subject(lambda: _DropsRows(by_python))
    assert run_check(registry.load("FWD207"), subject).verdict is Verdict.PASS


class _Views(nn.Linear):
    """A linear layer that refuses an input whose memory it cannot view as rows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, 8)).view(x.shape)


@pytest.mark.parametrize("code", ["FWD205", "FWD208"])
def test_an_input_that_is_refused_for_its_strides_is_no_finding(code: str) -> None:
    result = run_check(registry.load(code), embedding_subject(lambda: _Views(8, 8)))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class _OffAtOneLength(nn.Linear):
    """A linear layer that is another one at a length of no round number."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.01 if x.shape[1] == 41 else y


@pytest.mark.parametrize("seed", [0, 1])
def test_a_prefix_of_any_length_may_be_the_one_that_differs(seed: int) -> None:
    subject = embedding_subject(lambda: _OffAtOneLength(8, 8), seed)
    (finding,) = run_check(registry.load("FWD202"), subject).findings
    assert "the first 41 tokens alone" in finding.message
    assert finding.where.function == "forward"


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("code", CODES)
def test_healthy_nsa_is_silent_whatever_the_seed(small, code: str, seed: int) -> None:
    assert run_check(registry.load(code), replace(small, seed=seed, profile="smoke")).verdict is Verdict.PASS
