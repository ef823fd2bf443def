"""Checks that compare two runs: each illness is found under its own code, in its own line, and healthy code is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

CODES = ("FWD201", "FWD202", "FWD203", "FWD204", "FWD205", "FWD206", "FWD207", "FWD208")
Sick = Callable[..., LocalMeasurer]


def checked(sick: Sick, name: str, code: str, seed: int = 0) -> Result:
    subject = replace(sick(name).subject, max_length=211, seed=seed)
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
def test_an_illness_is_found_in_its_line(sick: Sick, name: str, code: str) -> None:
    result = checked(sick, f"comparisons:{name}", code)
    assert result.verdict is Verdict.FAIL
    where = result.findings[0].where
    assert where.module_class in ("Part", "_CountsCalls", "_OtherInTraining")
    if name not in ("drops_a_ragged_tail", "writes_into_its_input"):
        assert is_marked(where.file, where.line)


@pytest.mark.parametrize(
    "name", ["causal", "masked", "frozen", "token_model", "object_output", "no_parameters", "rude"]
)
@pytest.mark.parametrize("code", CODES)
def test_healthy_models_are_silent(sick: Sick, name: str, code: str) -> None:
    assert checked(sick, f"healthy:{name}", code).verdict is Verdict.PASS


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("code", CODES)
def test_healthy_nsa_is_silent_whatever_the_seed(small, code: str, seed: int) -> None:
    assert run_check(registry.load(code), replace(small, seed=seed, profile="smoke")).verdict is Verdict.PASS
