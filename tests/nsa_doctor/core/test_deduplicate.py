"""Findings are merged by what was seen, not by where alone."""

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.finding import Finding, Result, Scalar, Verdict
from nsa_doctor.core.measurement import Place

LINE = Place(module="a", file="m.py", line=3)


def found(code: str, **evidence: Scalar) -> Finding:
    return Finding(code=code, message=code, where=LINE, evidence=evidence)


def merged(*findings: Finding) -> dict[str, tuple[str, ...]]:
    """What is left: each code, and the codes that it stands for."""
    results = [Result(code=each.code, name="x", verdict=Verdict.FAIL, findings=(each,)) for each in findings]
    left = [finding for result in deduplicate(results, registry.entries()) for finding in result.findings]
    return {finding.code: finding.also for finding in left}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (found("FWD201", length=67), found("NAN101", lengths="512")),
        (found("FWD101", kind="raised", lengths="3"), found("FWD201", length=67)),
        (found("PRF101"), found("FWD201", length=67)),
        (found("FWD101", kind="raised"), found("HNG101", kind="timeout")),
    ],
    ids=["a leak and an inf", "a raise and a leak", "a loop and a leak", "a raise and a hang"],
)
def test_two_kinds_of_fault_on_one_line_are_two_findings(first: Finding, second: Finding) -> None:
    assert merged(first, second) == {first.code: (), second.code: ()}


def test_one_kind_of_fault_on_one_line_is_one_finding() -> None:
    assert merged(found("DEC101", length=70), found("FWD201", length=67)) == {"FWD201": ("DEC101",)}


def test_what_fails_where_the_other_is_silent_is_not_explained_by_it() -> None:
    assert set(merged(found("FWD301", length=17), found("NAN101", lengths="512,2048"))) == {"NAN101", "FWD301"}


def test_what_fails_where_the_other_does_is_explained_by_it() -> None:
    assert merged(found("FWD301", length=512), found("NAN101", lengths="512,2048")) == {"NAN101": ("FWD301",)}
