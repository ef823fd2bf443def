"""What `make mutants` counts: places that compute, and a score that nothing is left out of in silence."""

from itertools import islice

import pytest

from nsa_doctor.policy.proving.mutants import Mutant
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
