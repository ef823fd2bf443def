"""`sweep` and `run` decide alike on one subject: what one of them does not let pass, the other does not either."""

import subprocess
from collections.abc import Callable

import pytest

FACTORIES = {
    "healthy:tuple_output": 0,
    "unruly:raises": 1,
    "unruly:broken_factory": 1,
    "forward:empty_row": 1,
    "unruly:hangs": 1,
}


LONG = ("unruly:hangs", "forward:empty_row")


@pytest.mark.parametrize(
    ("factory", "code"),
    [pytest.param(*each, id=each[0], marks=[pytest.mark.full] * (each[0] in LONG)) for each in FACTORIES.items()],
)
def test_sweep_and_run_end_with_one_exit_code(
    factory: str, code: int, doctor: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    words = ["--subject", f"faulty.{factory}", "--timeout", "3", "--quiet"]
    seq, checks = ["--seq", "16,17"], ["--select", "FWD101,NAN101,HNG101", "--profile", "full"]
    assert (doctor("sweep", *words, *seq).returncode, doctor("run", *words, *checks).returncode) == (code, code)
