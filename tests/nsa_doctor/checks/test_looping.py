"""Loops to a limit and loops in plain Python are found with their line; loops over few things are left alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.check import Profile
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

Examine = Callable[..., Result]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examine:
    """`examined("to_the_limit")` is the result of PRF101 on that module of `faulty.looping`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(name: str, profile: Profile = "smoke") -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.looping:{name}", lengths=(16,)))
        return run_check(registry.load("PRF101"), replace(subject, profile=profile, max_length=1024))

    return examine


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("to_the_limit", "a loop goes 1,024 rounds at S=17 and at S=33 alike"),
        ("mask_of_lists", "a line of plain Python runs"),
        ("counted_in_python", "45,760 times at S=65"),
    ],
    ids=["to_the_limit", "mask_of_lists", "counted_in_python"],
)
def test_a_loop_that_operations_per_token_do_not_show_is_found(name: str, said: str, examined: Examine) -> None:
    (finding,) = examined(name).findings
    assert said in finding.message
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert finding.where.module == "part"


@pytest.mark.parametrize("name", ["blocks_counted_in_python", "mask_of_filled_blocks"])
def test_a_loop_over_blocks_is_found_at_longer_sequences(name: str, examined: Examine) -> None:
    (finding,) = examined(name, "quick").findings
    assert "at S=512 in every call, as the square of the tokens does" in finding.message
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert examined(name).verdict is Verdict.PASS


SHORT_LOOPS = ("mask_kept", "positions_of_a_list", "pairs_of_tiles", "sinkhorn", "experts", "padded_recurrence")


@pytest.mark.parametrize("name", SHORT_LOOPS)
@pytest.mark.parametrize("profile", ["smoke", "quick"])
def test_a_loop_over_few_things_is_left_alone(name: str, profile: Profile, examined: Examine) -> None:
    assert examined(name, profile).verdict is Verdict.PASS
