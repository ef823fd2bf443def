"""What a seam does to the tensors it is handed: each one that is written over is named, and a copy is not."""

from dataclasses import replace

import pytest
import torch

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

CHECK = registry.load("FWD208")


def spoilt(subject: Subject, seam: str, position: int) -> Subject:
    """The subject, that seam writing into one of its arguments, behind a view, before it is asked."""
    own = getattr(subject, seam)

    def faulty(*given):
        given[position].view(-1)[0] += 1
        return own(*given)

    return replace(subject, **{seam: faulty})


@pytest.mark.parametrize(
    ("seam", "position", "message"),
    [
        ("forward", 1, "1 of 2144 values of the input are overwritten by add_ at S=67"),
        ("packed", 1, "values of the input of packed are overwritten"),
        ("select", 0, "values of importance of select are overwritten"),
        ("attend", 1, "values of k of attend are overwritten"),
    ],
)
def test_an_argument_that_is_written_over_is_named(small: Subject, seam: str, position: int, message: str) -> None:
    result = run_check(CHECK, replace(spoilt(small, seam, position), profile="smoke"))
    assert result.verdict is Verdict.FAIL
    assert message in result.findings[0].message
    assert result.findings[0].where.file == __file__


def test_slots_that_a_conversion_does_not_copy_are_seen(small: Subject) -> None:
    attend = small.attend
    assert attend is not None
    faulty = replace(small, attend=lambda q, k, v, slots: attend(q, k, v, slots.to(torch.int64).clamp_(0)))
    assert "of slots of attend" in run_check(CHECK, faulty).findings[0].message
    copied = replace(small, attend=lambda q, k, v, slots: attend(q, k, v, slots.clone().clamp_(-1)))
    assert run_check(CHECK, copied).verdict is Verdict.PASS


def _is_under_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16


@pytest.mark.parametrize(
    ("seam", "position", "words"),
    [("padded", 1, "the input of padded"), ("padded", 2, "the mask of padded"), ("prefill", 1, "the input of prefill")],
)
def test_what_is_given_beside_a_mask_or_to_decode_is_the_callers(
    small: Subject, seam: str, position: int, words: str
) -> None:
    def padded(module, x, keep):
        return small.forward(module, x * keep[..., None])

    whole = replace(small, padded=padded)
    assert f"values of {words} are overwritten" in run_check(CHECK, spoilt(whole, seam, position)).findings[0].message
    assert run_check(CHECK, whole).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("is_so", "words"),
    [
        (_is_under_autocast, "autocast to float16"),
        (torch.is_anomaly_enabled, "autograd's anomaly mode"),
        (torch.is_inference_mode_enabled, "inference_mode()"),
    ],
)
def test_an_argument_that_is_written_over_under_a_circumstance_is_seen(small: Subject, is_so, words: str) -> None:
    def faulty(module, x):
        if is_so():
            x.data.mul_(2)  # here
        return small.forward(module, x)

    (finding,) = run_check(CHECK, replace(small, forward=faulty)).findings
    assert f"under {words}" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_nsa_leave_what_they_are_given_alone(small: Subject, seed: int) -> None:
    assert run_check(CHECK, replace(small, seed=seed)).verdict is Verdict.PASS
