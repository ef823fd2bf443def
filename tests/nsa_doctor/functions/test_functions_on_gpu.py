"""Triton kernels in bfloat16 on a GPU: each fault is found with its tensor, and what is right is silent."""

import ast

import pytest
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.function import FunctionSubject
from tests.gallery_functions.on_gpu import HEALTHY, WRONG
from tests.gallery_functions.planting import Case, Wrong, load
from tests.nsa_doctor.functions.examined import results, subject_of

on_a_gpu = pytest.mark.gpu
SPARSE = "topk=4,block=16,gqa=2"


def subject(case: Case, seed: int = 0) -> FunctionSubject:
    pytest.importorskip("triton")
    spec = SPARSE if case.like == "nsa" else case.spec.replace("bidirectional", "full")
    return subject_of(load(case), case.like, spec, dtype="bfloat16", seed=seed, device="cuda")


@pytest.mark.parametrize("case", [*WRONG, *HEALTHY], ids=lambda case: case.name)
def test_every_edit_gives_a_file_of_python_that_differs(case: Case) -> None:
    ast.parse(case.source())
    assert (case.source() == case.unedited()) is (case in HEALTHY)


@on_a_gpu
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_kernel_is_found_and_its_tensor_named(case: Wrong) -> None:
    ended = results(subject(case), ["FUN201", "FUN202", "FUN301", "FUN302", "FUN401"])
    found = [each for result in ended.values() for each in result.findings]
    assert found, {code: result.reason for code, result in ended.items()}
    assert any(str(each.evidence.get("tensor", "")) in case.tensors for each in found)


@on_a_gpu
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_kernel_that_is_right_is_silent(case: Case, seed: int) -> None:
    ended = results(subject(case, seed))
    assert {code: result.findings for code, result in ended.items() if result.findings} == {}
    assert {code: result.reason for code, result in ended.items() if result.verdict is Verdict.CRASH} == {}


@on_a_gpu
def test_a_kernel_on_the_default_stream_is_found_on_another() -> None:
    check = registry.load("FUN507")
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal", dtype="bfloat16", device="cuda")
    assert judge(check, right).verdict is Verdict.PASS
    (finding,) = judge(check, check.planted(right)).findings
    assert "its inputs are filled late" in finding.control


def test_streams_are_no_question_on_a_cpu() -> None:
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal")
    result = judge(registry.load("FUN507"), right)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
