"""What `make mutants` counts: places that compute, and a score that nothing is left out of in silence."""

from itertools import islice

import pytest

from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.policy.proving.mutants import Mutant
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check
from tests.mutants import FOLDERS, Fate, drawn_mutants, summary


def test_mutants_are_drawn_from_what_computes_on_a_cpu():
    mutants = list(islice(drawn_mutants(0), 50))
    assert all(mutant.file.startswith(FOLDERS) and not mutant.file.endswith("triton.py") for mutant in mutants)
    assert mutants == list(islice(drawn_mutants(0), 50))


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        (["noticed", "refused", "missed", "distinguished by nobody"], "2 of   3   66.7 %"),
        (["noticed", "broke the doctor"], "1 of   2   50.0 %"),
        (["noticed", "unknown"], "1 of   1  100.0 %"),
    ],
)
def test_the_score_is_of_mutants_that_change_something(ends, line):
    mutant = Mutant(file="nsa/ops/a.py", line=3, kind="sign", before="a", after="b", text="b")
    text = summary([Fate(mutant=mutant, end=end) for end in ends])
    assert line in text
    assert text.count("nsa/ops/a.py:3") == sum(end not in ("noticed", "refused") for end in ends)


SMALL = [
    {"config": "tests/mutants_layer.yaml"},
    {"config": "tests/mutants_other.yaml"},
    {"spec": "tests.mutants_model:model"},
]


@pytest.mark.parametrize("small", SMALL, ids=lambda small: next(iter(small.values())))
@pytest.mark.parametrize("code", ["HNG201", "PRF201"])
def test_what_mutants_are_made_of_passes_at_lengths_of_a_few_blocks(code, small):
    check, subject = registry.load(code), load_subject(SubjectRequest(**small))
    result = run_check(check, subject)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert run_check(check, check.planted(subject)).verdict is Verdict.FAIL
