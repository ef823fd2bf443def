"""Families of checks have one order, and no family is missing from it."""

import random

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.check import usual_priority
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.families import FAMILIES, family_of, in_order
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.render.check_list import families
from nsa_doctor.render.overview import not_checked, overview

CODES = list(registry.entries())
OWN = sorted({code[:3] for code in CODES})


def report(*codes: str, verdict: Verdict = Verdict.PASS, is_required: bool = True) -> Report:
    results = tuple(Result(code=code, name="n", verdict=verdict, is_required=is_required) for code in codes)
    return Report(command="run", subject={"name": "x"}, options={}, environment={}, results=results)


def test_every_family_has_a_title_and_no_title_is_of_none() -> None:
    assert sorted(FAMILIES) == OWN


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_place_in_the_order_of_importance(family: str) -> None:
    assert usual_priority(f"{family}101") < usual_priority("ZZZ101")


def test_data_that_is_wrong_is_reported_before_what_follows_from_it() -> None:
    results = [Result(code=code, name="n", verdict=Verdict.PASS) for code in ("TRN202", "DAT101", "FWD101", "ZZZ101")]
    ended = [result.code for result in deduplicate(results, {})]
    assert ended == ["FWD101", "DAT101", "TRN202", "ZZZ101"]


def test_those_of_other_packages_come_last() -> None:
    mixed = ["FOR", *FAMILIES, "ABC"]
    random.Random(0).shuffle(mixed)
    assert in_order([*mixed, *mixed]) == [*FAMILIES, "ABC", "FOR"]


def test_every_list_of_families_is_in_this_order() -> None:
    shuffled = [*CODES, "FOR101"]
    random.Random(0).shuffle(shuffled)
    expected = [*FAMILIES, "FOR"]
    assert [line[:3] for line in overview(report(*shuffled))] == expected
    assert [family.code for family in families(report(*shuffled))] == expected
    (idle,) = not_checked(report(*shuffled, verdict=Verdict.SKIP, is_required=False))
    assert [word for word in idle.replace(",", "").split() if word in expected] == expected


@pytest.mark.parametrize("code", ["ranges", "FWD101 x", "fwd101", "", "FWD1010"])
def test_what_is_no_code_is_of_no_family_in_the_overview(code: str) -> None:
    assert list(overview(report(code))) == []


def test_a_target_of_fuzz_is_a_family_of_its_own() -> None:
    assert family_of("FWD101") == ("FWD", "forward")
    assert family_of("fuzz ranges") == ("fuzz", "")
    assert family_of("FOR101") == ("FOR", "")
    assert family_of("") == ("other", "")
