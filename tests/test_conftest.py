"""The surroundings that conftest.py promises to every test."""

import warnings
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis.internal.conjecture import providers

import nsa
import nsa_doctor


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_unwritten_memory_is_nan(dtype: torch.dtype) -> None:
    like = torch.zeros(3, 5, dtype=dtype)
    made = [
        torch.empty(3, 5, dtype=dtype),
        torch.empty_like(like),
        like.new_empty(3, 5),
        torch.empty_strided((3, 5), (5, 1), dtype=dtype),
        like.clone().resize_(90)[15:],
    ]
    assert [bool(tensor.isnan().all()) for tensor in made] == [True] * len(made)


def test_unwritten_integers_are_out_of_any_range() -> None:
    assert torch.empty(4, dtype=torch.int64).min() == torch.iinfo(torch.int64).max


@pytest.mark.parametrize("attempt", [1, 2])
def test_every_test_draws_the_same_numbers(attempt: int) -> None:
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(0)).item()


@pytest.mark.gpu
def test_a_gpu_test_runs_only_beside_a_device() -> None:
    assert torch.cuda.is_available()


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 120


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning, match="noticed"):
        warnings.warn("noticed", stacklevel=1)


def test_hypothesis_tries_the_same_examples_every_time_without_a_deadline() -> None:
    settings = hypothesis.settings()
    assert (settings.derandomize, settings.deadline) == (True, None)


def test_hypothesis_takes_constants_of_what_is_examined_and_not_of_the_doctor() -> None:
    assert providers.is_local_module_file(str(nsa.__file__))
    assert not providers.is_local_module_file(str(nsa_doctor.__file__))


def test_golden_text_is_compared(
    golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("--golden"):
        pytest.skip("golden files are being written")
    monkeypatch.setitem(golden.__globals__, "GOLDEN", tmp_path / "tests" / "golden")
    with pytest.raises(AssertionError, match="make golden writes it"):
        golden("a.txt", "text\n")
    (tmp_path / "tests" / "golden").mkdir(parents=True)
    (tmp_path / "tests" / "golden" / "a.txt").write_text("text\n")
    golden("a.txt", "text\n")
    with pytest.raises(AssertionError):
        golden("a.txt", "other\n")
