"""Kernels are examined by name: FWD301 compares those that serve the subject's device and dtype, fuzz the one named.

No CUDA device is needed: what the machine has is replaced in the table of implementations.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import find, given, settings
from torch import nn

from nsa import backends
from nsa.config import load_config
from nsa.nn import NSAttention
from nsa_doctor.adapters import nsa_alternatives as nsa_relatives
from nsa_doctor.adapters.nsa_layer import builtin_subject
from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.fuzz import strategies
from nsa_doctor.fuzz.cases import IMPLS, read_case
from nsa_doctor.fuzz.properties.examine import examine, offers
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.render.reading import read_report
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE

SMALL = str(HERE / "small.yaml")
HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's CPU serves kernels, in half precision, as a CUDA device does."""

    def why(name: str, package: str, device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
        return None if dtype in HALF else f"{name} needs float16 or bfloat16, got {dtype}"

    monkeypatch.setattr(backends, "_why_no_kernel", why)


def test_the_fuzzer_knows_every_implementation() -> None:
    assert set(IMPLS) == set(get_args(backends.Impl)) - {"auto"}


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize(("dtype", "kernels"), [("bfloat16", {"triton", "flash"}), ("float32", set())])
def test_twins_are_those_that_serve_the_device_and_dtype(dtype: str, kernels: set[str]) -> None:
    config = load_config(SMALL).model
    twins = nsa_relatives.twins(config, "cpu", dtype)
    assert set(twins) == {"reference", "vectorized", "fused", *kernels}
    assert all(isinstance(twins[name](0), NSAttention) and twins[name](0).impl == name for name in twins)


@pytest.mark.parametrize("is_faulty", [True, False], ids=["faulty", "healthy"])
def test_a_kernel_that_serves_half_precision_alone_is_compared_in_it(small: Subject, is_faulty: bool) -> None:
    asked: list[tuple[str, str]] = []

    class Kernel(NSAttention):
        def forward(self, x: torch.Tensor, *given: Any) -> torch.Tensor:
            if x.dtype not in HALF:
                raise ValueError("the kernel needs float16 or bfloat16")
            return super().forward(x, *given) * (1.5 if is_faulty else 1)

    def twins(device: str, dtype: str) -> dict[str, Callable[[int], nn.Module]]:
        asked.append((device, dtype))
        return {"triton": lambda seed: Kernel(load_config(SMALL).model)} if dtype == "bfloat16" else {}

    build = small.build
    half = replace(small, dtype="bfloat16", build=lambda seed: build(seed).bfloat16(), twins=twins)
    result = run_check(registry.load("FWD301"), half)
    assert asked == [("cpu", "float64"), ("cpu", "bfloat16")]
    assert result.verdict is (Verdict.FAIL if is_faulty else Verdict.PASS), result
    if is_faulty:
        assert "under implementation triton" in result.findings[0].message


@pytest.mark.parametrize("impl", ["triton", "flash"])
def test_fuzz_refuses_a_kernel_that_cannot_serve_here(impl: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["fuzz", "attend", "--impl", impl, "--config", SMALL, "--examples", "3", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert f"--impl {impl}: impl='{impl}' cannot serve: " in error
    assert "needs a CUDA device, got cpu" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["attend", "--impl", "cuda"],
            "--impl cannot be 'cuda': allowed are reference, vectorized, fused",
        ),
        (["--impl", "fused", "--replay", "x.json"], "--impl has no effect with --replay"),
    ],
)
def test_a_name_that_cannot_be_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["fuzz", *words, "--quiet"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("impl", ["reference", "vectorized", "fused"])
def test_the_named_implementation_alone_is_tried(impl: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[Any] = []

    def noting(self: Supervisor, case: str | None) -> dict[str, Any]:
        if case is None:
            return offers(builtin_subject(SMALL))
        tried.append(read_case(case))
        return examine(read_case(case), builtin_subject(SMALL)).to_json()

    monkeypatch.setattr(Supervisor, "fuzz", noting)
    report = tmp_path / "report.json"
    words = ["fuzz", "all", "--impl", impl, "--config", SMALL, "--examples", "8", "--output", str(report), "--quiet"]
    assert serve(words) in (0, 3)
    assert {case.kind for case in tried} >= {"reads", "attention"}
    assert {case.impl for case in tried} == {impl}
    skipped = {result.name for result in read_report(report).results if result.verdict is Verdict.SKIP}
    assert {"ranges", "forward"} <= skipped


@pytest.mark.usefixtures("with_kernels")
def test_a_kernel_is_tried_in_the_dtypes_that_it_serves(small: Subject) -> None:
    offered = {**offers(small), "dtype": None, "impl": "triton"}
    drawn: list[dict[str, Any]] = []

    @settings(max_examples=40, database=None)
    @given(strategies.of("masks", offered, True), strategies.of("attend", offered, True))
    def draw(reads: dict[str, Any], attention: dict[str, Any]) -> None:
        drawn.extend((reads, attention))

    draw()
    assert {case["impl"] for case in drawn} == {"triton"}
    assert {case["dtype"] for case in drawn} == {"bfloat16", "float16"}


@pytest.mark.usefixtures("with_kernels")
def test_a_named_kernel_is_run_or_raises(small: Subject) -> None:
    if backends.importlib.util.find_spec("triton") is not None:
        pytest.skip("triton is installed, and would be run")
    offered = {**offers(small), "dtype": None, "impl": "triton"}
    case = find(strategies.of("masks", offered, True), lambda case: True, settings=settings(database=None))
    (failure,) = examine(read_case(json.dumps(case)), small).failures
    assert failure.property == "raises ModuleNotFoundError"
    assert "triton" in failure.message
