"""Each check of functions finds what it plants, and all are silent on functions that are right."""

import pytest

from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.function import FunctionSubject
from tests.gallery_functions.odd.custom_op import attention
from tests.nsa_doctor.functions.examined import codes, results, short_codes, subject_of
from tests.nsa_doctor.functions.healthy import HEALTHY, flash, with_backward

MOST_FINDINGS = 3
ONLY_NOTES = ("FUN505",)
LONG = (  # half a minute on a busy core
    "flex causal",
    "sdpa causal",
    "hf sinks",
    "flex softcap alibi",
    "sparse",
    "varlen",
    "sdpa gqa scale",
)
ALIKE = (
    "sdpa full",
    "sdpa mask",
    "sdpa window",
    "flash bidirectional window",
    "online",
    "with backward",
    "native",
)  # others do the like
NAMES = [pytest.param(name, marks=pytest.mark.full) if name in (*LONG, *ALIKE) else name for name in HEALTHY]
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 20)))


ON_A_GPU = ("FUN507",)
CODES = [
    pytest.param(code, marks=pytest.mark.full) if code not in short_codes() else code
    for code in codes()
    if code not in ON_A_GPU
]


def subject_for(code: str) -> FunctionSubject:
    """A function that is right, of the kind that a check is about."""
    if code in ("FUN202", "FUN306"):  # by heads that are shared, and by more queries than keys
        return subject_of(flash, "flash", "causal,gqa=2")
    if code == "FUN506":
        return subject_of(attention, "sdpa", "causal,builtin")
    return subject_of(with_backward, "sdpa", "causal")


@pytest.mark.parametrize("code", CODES)
def test_a_check_of_functions_finds_what_it_plants_and_nothing_else(code: str) -> None:
    check, subject = registry.load(code), subject_for(code)
    healthy, faulty = judge(check, subject), judge(check, check.planted(subject))
    assert (healthy.verdict, healthy.findings) == (Verdict.PASS, ()), healthy
    if code in ONLY_NOTES:
        assert (healthy.notes, faulty.verdict) == ((), Verdict.PASS)
        assert any("served by" in note for note in faulty.notes)
        return
    assert faulty.verdict is Verdict.FAIL, faulty.reason
    assert 1 <= len(faulty.findings) <= MOST_FINDINGS
    assert all(each.code == code and each.repro.startswith("nsa-doctor run") for each in faulty.findings)
    places = {each.where.file.rpartition("/")[2] for each in faulty.findings}
    assert places & {
        registry.entries()[code].path.name,
        "healthy.py",
        "custom_op.py",
    }  # the backward that is behind a gradient


def test_a_call_that_raises_is_placed_where_it_does() -> None:
    check = registry.load("FUN101")
    (finding,) = judge(check, check.planted(subject_for("FUN101"))).findings
    assert finding.where.function == "needs_an_even_length"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(each, marks=pytest.mark.full) for each in ("float32", "float16"))]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_is_right_is_silent(name: str, dtype: str, seed: int) -> None:
    function, like, spec = HEALTHY[name]
    ended = results(subject_of(function, like, spec, dtype=dtype, seed=seed))
    assert {code: result.findings for code, result in ended.items() if result.findings} == {}
    assert {code: result.reason for code, result in ended.items() if result.verdict is Verdict.CRASH} == {}
