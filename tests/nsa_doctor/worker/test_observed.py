"""What any call of a check does is said, though the check makes nothing of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.allowance import Allowance
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError, attempt
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.engine.conclusions import with_observed
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

Measurer = Callable[[str], LocalMeasurer]
Calls = Callable[[BuiltModule], object]


def careless(calls: Calls, dtype: str | None = None) -> Check:
    """A check that makes these calls, swallows what they raise and finds nothing."""

    def run(subject: Subject) -> Iterator[Finding]:
        attempt(lambda: calls(built(subject, dtype=dtype)))
        yield from ()

    return Check(doc="FWD999 careless\n\nDetects: x.\nMatters: x.\nFix: x.", run=run, planted=lambda subject: subject)


def backward(sp: BuiltModule, batch: int) -> None:
    output = sp(sp.input(9, batch))
    ask("backward", output.square().sum().backward, sp.module, output)


def seen(
    faulty: Measurer, name: str, calls: Calls, dtype: str | None = None, locating: Allowance | None = None
) -> Result:
    return run_check(careless(calls, dtype), faulty(f"sometimes:{name}").subject, locating)


def test_once_the_seconds_of_all_checks_are_over_no_place_is_looked_for(faulty: Measurer) -> None:
    allowance = Allowance(60.0)
    (located,) = seen(faulty, "NanInBatches", lambda sp: sp(sp.input(9, batch=2)), locating=allowance).findings
    assert "the first inf comes from div" in located.message
    assert 0 < allowance.seconds < 60
    (other,) = seen(faulty, "NanInBatches", lambda sp: sp(sp.input(9, batch=2)), locating=Allowance(0.0)).findings
    assert other.code == located.code
    assert other.message.endswith("where that begins is not known: it was not looked for")


@pytest.mark.parametrize(
    ("name", "calls", "code", "line"),
    [
        ("RaisesInBatches", lambda sp: sp(sp.input(9, batch=2)), "FWD101", 'raise RuntimeError("shape'),
        ("NanInBatches", lambda sp: sp(sp.input(9, batch=2)), "NAN101", "h / (1 - float"),
        ("NanOnTheThirdCall", lambda sp: [sp(sp.input(9)) for _ in range(3)], "NAN101", "h / 0.0 if self.calls"),
        ("NanGradientInBatches", lambda sp: backward(sp, 2), "NAN102", "gradient / 0.0"),
    ],
)
def test_what_a_check_swallows_is_a_finding_with_its_line(
    faulty: Measurer, name: str, calls: Calls, code: str, line: str
) -> None:
    result = seen(faulty, name, calls)
    (finding,) = result.findings
    assert (finding.code, result.verdict) == (code, Verdict.PASS)
    with open(finding.where.file, encoding="utf-8") as file:
        assert line in file.read().splitlines()[finding.where.line - 1]


def test_a_finding_says_under_which_conditions_the_call_was_made(faulty: Measurer) -> None:
    (finding,) = seen(faulty, "NanInBatches", lambda sp: sp(sp.input(9, batch=2))).findings
    assert "S=9 (batch of 2, eval, call 1 of FWD999)" in finding.message


def test_what_the_same_call_does_not_show_again_is_looked_for_in_repetitions(faulty: Measurer) -> None:
    (finding,) = seen(faulty, "NanOutsideTheModule", lambda sp: [sp(sp.input(9)) for _ in range(5)]).findings
    assert (finding.evidence["num_repeats"], finding.where.function) == (32, "mixed")
    assert "repetitions of the call" in finding.message


@pytest.mark.parametrize(
    "calls",
    [
        lambda sp: sp(1e6 * sp.input(9, batch=2)),
        lambda sp: sp(sp.input(9, batch=2) * float("nan")),
        lambda sp: scaled(sp)(sp.input(9, batch=2)),
        lambda sp: sp(sp.input(sp.subject.max_length + 1, batch=2)),
        lambda sp: provoked(sp),  # noqa: PLW0108 (defined below)
    ],
    ids=["large input", "NaN as input", "scaled weights", "longer than it serves", "said to be provoked"],
)
def test_what_a_check_provokes_is_no_finding(faulty: Measurer, calls: Calls) -> None:
    assert not seen(faulty, "NanInBatches", calls).findings
    assert not seen(faulty, "RaisesInBatches", calls).findings


def scaled(sp: BuiltModule) -> BuiltModule:
    with torch.no_grad():
        for parameter in sp.module.parameters():
            parameter.mul_(1e3)
    return sp


def provoked(sp: BuiltModule) -> None:
    with unobserved():
        sp(sp.input(9, batch=2))


def test_a_precision_that_the_subject_never_ran_in_may_raise(faulty: Measurer) -> None:
    def tried(sp: BuiltModule) -> None:
        with pytest.raises(SubjectFailedError):
            sp(sp.input(9))

    assert not seen(faulty, "Float32Alone", tried, "float64").findings


def test_a_precision_that_it_has_run_in_may_not(faulty: Measurer) -> None:
    (finding,) = seen(
        faulty, "RaisesInBatches", lambda sp: (sp(sp.input(9)), sp(sp.input(9, batch=2))), "float64"
    ).findings
    assert finding.code == "FWD101"


@pytest.mark.parametrize("code", ["FWD205", "FWD208", "FWD212", "GRD102", "GRD107"])
def test_what_a_module_need_not_serve_it_may_refuse(faulty: Measurer, code: str) -> None:
    assert not run_check(registry.load(code), faulty("sometimes:Refusing").subject).findings


def test_the_report_fails_the_check_that_answers_it() -> None:
    finding = Finding(code="NAN101", message="x", where=Place(file="a.py", line=3))
    passed = Result(code="NAN101", name="x", verdict=Verdict.PASS)
    (result,) = with_observed([passed], [finding])
    assert (result.verdict, result.findings) == (Verdict.FAIL, (finding,))


def test_the_report_fails_a_check_that_nobody_asked_for() -> None:
    (result,) = with_observed([], [Finding(code="NAN101", message="x")])
    assert result.verdict is Verdict.FAIL


def test_what_the_sweep_saw_at_that_line_is_said_once() -> None:
    finding = Finding(code="NAN101", message="x", where=Place(file="a.py", line=3))
    failed = Result(code="NAN101", name="x", verdict=Verdict.FAIL, findings=(finding,))
    assert with_observed([failed], [replace(finding, message="y")]) == (failed,)


def test_a_norm_of_a_single_value_is_not_measured() -> None:
    class Normed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pooled = x.mean(1, keepdim=True).mT  # one value for each channel of a row
            return x + nn.functional.batch_norm(pooled, None, None, training=True).mT

    subject = Subject(
        name="normed", build=lambda seed: Normed(), forward=lambda module, x: module(x), input="embeddings", width=8
    )
    result = run_check(registry.load("FWD204"), subject)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
    assert "more than 1 value per channel" in result.reason
