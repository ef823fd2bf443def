"""Three of the healthy runs of `tests/healthy_runs.py`, in processes of their own."""

import pytest

from tests.healthy_runs import CASES, results_of, summary, write_texts


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) for name in ("resumed", "eight steps", "text")]
)
def test_the_doctor_is_silent_on_a_healthy_run(name, tmp_path):
    write_texts(tmp_path)
    case = next(case for case in CASES if case.name == name)
    lines, counts = summary(results_of(case, 11, tmp_path))
    assert lines == []
    assert "PASS" in counts
