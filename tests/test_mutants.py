"""What `make mutants` counts: places that compute, and a score that nothing is left out of in silence."""

import pytest

from tests.mutants import Fate, Mutant, lines_that_compute, told

TEXT = '''"""Docstring with 1 + 1."""
import torch

ONE = 1


class A:
    size: int

    def f(self, x: int = 3) -> int:
        """About x + 1."""
        if x < 0:
            raise ValueError(f"x must be at least {0 + 0}, got {x}")
        assert x + 1
        return x + 1

    def extra_repr(self) -> str:
        return str(1 + 1)
'''


def test_what_raises_tells_or_annotates_is_not_mutated():
    assert lines_that_compute(TEXT) == {4, 15}


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        (["noticed", "refused", "missed", "told apart by nobody"], "2 of   3   66.7 %"),
        (["noticed", "broke the doctor"], "1 of   2   50.0 %"),
        (["noticed", "unknown"], "1 of   1  100.0 %"),
    ],
)
def test_the_score_is_of_mutants_that_change_something(ends, line):
    mutant = Mutant(file="nsa/ops/a.py", line=3, operator="core/AddNot", occurrence=0, before="a", after="b")
    text = told([Fate(mutant=mutant, end=end) for end in ends])
    assert line in text
    assert text.count("nsa/ops/a.py:3") == sum(end not in ("noticed", "refused") for end in ends)
