"""Forward and training passes, to save and to compare with a saved run of the same machine.

pytest --pyargs nsa_doctor.pytest.benchmarks -m "not nsa_doctor" --nsa-subject my_pkg.attn:make --benchmark-save before
pytest --pyargs nsa_doctor.pytest.benchmarks -m "not nsa_doctor" --nsa-subject my_pkg.attn:make \
    --benchmark-compare 0001 --benchmark-compare-fail median:20%
"""

from typing import Any

import pytest

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

LENGTHS = (128, 512, 1024)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mode", ["no_grad", "train"])
def test_pass(nsa_subject: Any, benchmark: Any, mode: Any, length: int) -> None:
    """One pass; a length or a mode that the subject does not serve is skipped."""
    from nsa_doctor.probes.cost.timing import Stopwatch

    if length > nsa_subject.max_length or mode not in nsa_subject.modes:
        pytest.skip(f"the subject serves up to {nsa_subject.max_length} tokens in {', '.join(nsa_subject.modes)}")
    watch = Stopwatch(nsa_subject, mode, is_wall=True)
    benchmark(lambda: watch.seconds(length))
