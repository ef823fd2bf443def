"""Gradients that are not the derivative are found at the call at fault, those meant so are noted, right ones pass."""

from dataclasses import replace

import pytest
import torch

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.gradients.derivative import Agreement, compare
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

IN_PART = (
    *("scaled", "missing_term", "detached_weights", "data_of_a_gate", "branch_without_grad", "item", "silent_write"),
    *("future_gradient", "rewrapped", "one_of_two_uses", "wrong_axis", "forgets_the_mask", "training_alone"),
    *("wrong_embedding", "hooked", "scaled_in_bfloat16", "detached_in_float32"),
)
RIGHT = (
    *("custom_softmax", "stable_softmax", "top_two", "float32_norm", "fused", "recomputed", "row_by_row", "tied"),
    *("torch_layer", "normed", "relu", "scores_in_bfloat16", "in_float32"),
    "checkpointed_in_float32",
)
ON_PURPOSE = (
    *("straight_through", "rounded", "hard_choice", "reversed_gradient", "shrunk", "auxiliary", "frozen_branch"),
    *("shrunk_in_pairs", "ternary", "eight_bits", "to_a_constant", "to_a_constant_in_a_bucket"),
)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch):
    """`examined("GRD101", "gradients:scaled")` is the result of that check on that module of the folder `faulty`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(code: str, name: str, **options) -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.{name}", lengths=(16,)))
        return run_check(registry.load(code), replace(subject, **options))

    return examine


@pytest.mark.parametrize("name", IN_PART)
def test_the_call_at_which_a_gradient_goes_wrong_is_named(name: str, examined) -> None:
    result = examined("GRD101", f"gradients:{name}")
    assert result.verdict is Verdict.FAIL
    where = result.findings[0].where
    assert where.module == "part"
    assert is_marked(where.file, where.line), where


@pytest.mark.parametrize(
    "name", [*RIGHT, pytest.param("recomputed_reentrant", marks=pytest.mark.filterwarnings("ignore"))]
)
def test_a_right_gradient_raises_neither_finding_nor_note(name: str, examined) -> None:
    result = examined("GRD101", f"gradients_healthy:{name}")
    assert (result.verdict, result.notes) == (Verdict.PASS, ())


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_a_gradient_that_is_other_on_purpose_is_a_note(name: str, examined) -> None:
    result = examined("GRD101", f"gradients_healthy:{name}")
    assert result.verdict is Verdict.PASS
    assert len(result.notes) == 1
    assert "gradients_healthy.py" in result.notes[0]


def test_a_write_through_numpy_is_found_where_the_tensor_left_the_graph(examined) -> None:
    where = examined("GRD101", "gradients:silent_numpy").findings[0].where
    assert is_marked(where.file, where.line), where


def test_training_mode_is_left_out_where_the_subject_has_none(examined) -> None:
    assert examined("GRD101", "gradients:training_alone", modes=("eval", "no_grad")).verdict is Verdict.PASS


def test_half_precision_alone_leaves_nothing_to_compare(examined) -> None:
    result = examined("GRD101", "unusual:in_bfloat16")
    assert (result.verdict, "bfloat16" in result.reason) == (Verdict.SKIP, True)


@pytest.mark.parametrize("name", ["forgetful", "counting", "once_only"])
def test_a_backward_that_remembers_is_named(name: str, examined) -> None:
    finding = examined("GRD102", f"gradients:{name}").findings[0]
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)


def test_a_second_pass_that_raises_without_a_word_of_it_is_named(examined) -> None:
    finding = examined("GRD102", "gradients:for_one_pass").findings[0]
    assert "raises" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("name", ["recomputed", "relu", "tied", "custom_softmax", "for_one_pass"])
def test_gradients_that_repeat_pass(name: str, examined) -> None:
    assert examined("GRD102", f"gradients_healthy:{name}").verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["future_gradient", "forgets_the_mask"])
def test_a_gradient_that_reaches_the_future_is_named(name: str, examined) -> None:
    finding = examined("GRD103", f"gradients:{name}").findings[0]
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("name", ["healthy:causal", "healthy:token_model", "gradients_healthy:fused", "gradients:item"])
def test_a_gradient_that_stays_behind_passes(name: str, examined) -> None:
    assert examined("GRD103", name).verdict is Verdict.PASS


def slope_of(function, autograd: float, at: float = 0.0):
    shifted = lambda step: function(torch.tensor([at + step], dtype=torch.float64))  # noqa: E731
    return compare(shifted, shifted(0.0), torch.ones(1, dtype=torch.float64), [autograd], torch.float64)


def test_a_jump_within_the_step_is_no_finding() -> None:
    assert slope_of(lambda x: x + (x > 3e-8) * 1e-3, 1.0).agreement is not Agreement.DIFFERS


def test_a_kink_right_at_the_point_is_no_finding() -> None:
    assert slope_of(torch.relu, 0.0).agreement is not Agreement.DIFFERS


def test_float32_inside_is_no_finding() -> None:
    assert slope_of(lambda x: x.float().exp().double(), 1.0).agreement is Agreement.AGREES


def test_a_wrong_slope_is_a_finding() -> None:
    assert slope_of(torch.exp, 0.999).agreement is Agreement.DIFFERS


@pytest.mark.parametrize("name", ["running_mean", "running_mean_inside", "denominator"])
def test_sums_kept_in_half_precision_are_found_in_their_module(name: str, examined) -> None:
    result = examined("FWD304", f"precisions:{name}")
    assert [finding.where.module for finding in result.findings] == ["part"]


@pytest.mark.parametrize("name", ["variance", "variance_in_half"])
def test_squares_that_cancel_are_found(name: str, examined) -> None:
    finding = examined("FWD304", f"precisions:{name}").findings[0]
    assert (finding.where.module_class, "input around" in finding.message) == ("_Bare", True)


@pytest.mark.parametrize("name", ["fused", "written_out", "normed", "recurrent", "in_half_by_design", "mapped"])
def test_a_precision_that_keeps_to_its_budget_passes(name: str, examined) -> None:
    assert examined("FWD304", f"precisions:{name}").verdict is Verdict.PASS


def test_a_softmax_in_float32_within_float64_is_no_finding(examined) -> None:
    assert examined("FWD305", "precisions:softmax_in_float32").verdict is Verdict.PASS


def test_a_module_narrower_than_its_dtype_is_a_note_with_its_line(examined) -> None:
    result = examined("FWD305", "precisions:in_half_by_design")
    assert result.verdict is Verdict.PASS
    assert "values pass through bfloat16, narrower than float32: no comparison is finer than 0.0078" in result.notes[0]
    assert "precisions.py" in result.notes[0]


@pytest.mark.parametrize(
    "name", ["mean_added_up_in_half", "mean_added_up_in_a_half_buffer", "softmax_in_half", "masked_in_half"]
)
def test_a_sum_narrower_than_what_it_adds_up_is_found_at_its_line(name: str, examined) -> None:
    (finding,) = examined("FWD305", f"precisions:{name}").findings
    assert is_marked(finding.where.file, finding.where.line), finding.where


@pytest.mark.parametrize(
    "name", ["gradients_healthy:float32_norm", "gradients_healthy:not_in_float64", "healthy:causal"]
)
def test_a_module_as_fine_as_its_dtype_needs_no_note(name: str, examined) -> None:
    result = examined("FWD305", name)
    assert (result.verdict, result.notes) == (Verdict.PASS, ())


@pytest.mark.parametrize("code", ["GRD101", "GRD102"])
def test_gradients_that_are_finite_in_float32_alone_are_compared_there(code: str, examined) -> None:
    assert examined(code, "gradients_healthy:lost_in_float64").verdict is Verdict.PASS


def test_a_module_that_refuses_float64_has_none_to_stray_from(examined) -> None:
    result = examined("FWD304", "gradients_healthy:not_in_float64")
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
