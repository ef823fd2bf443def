"""Memory with the square of the length is found where nothing else grows so, and left alone where something does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.cost.table_growth import Tables, oversized
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

Examine = Callable[[str, str], Result]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examine:
    """`examined("PRF203", "of_one_block")` is the result of that check on that module of `faulty.tables`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(code: str, name: str) -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.tables:{name}", lengths=(16,)))
        return run_check(registry.load(code), replace(subject, profile="quick"))

    return examine


def test_a_mask_of_all_pairs_that_a_window_is_cut_from_is_found_at_its_line(examined: Examine) -> None:
    (finding,) = examined("PRF203", "cut_from_all_pairs").findings
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert "GB at S=65,536" in finding.message


@pytest.mark.parametrize(
    "name", ["of_one_block", "dense_with_a_mask", "scores_on_one_line", "of_torch", "nothing_kept"]
)
def test_a_mask_that_grows_as_the_work_does_is_left_alone(name: str, examined: Examine) -> None:
    assert examined("PRF203", name).verdict is Verdict.PASS


def test_a_table_that_is_little_at_all_lengths_that_are_served_is_left_alone() -> None:
    here = Place(file="model.py", line=7)
    lengths = (192, 384, 768)
    passes = [
        Tables(
            length=length,
            bytes={here: length**2 // 128},
            work={(here, "mm"): 1000 * length},
            peak_bytes=4096 * length,
            num_operations=10,
        )
        for length in lengths
    ]
    assert oversized(passes, 1024) is None
    assert oversized(passes, 65_536) is not None


def test_weights_of_every_chunk_that_are_kept_are_found_with_their_attribute(examined: Examine) -> None:
    (finding,) = examined("PRF303", "all_weights_kept").findings
    assert finding.message.startswith("weights holds, after a call without gradients")
    assert (finding.where.module, finding.where.function) == ("part", "forward")


@pytest.mark.parametrize("name", ["nothing_kept", "means_kept", "at_once", "mask_by_length"])
def test_what_is_small_or_needed_or_made_of_no_input_may_be_kept(name: str, examined: Examine) -> None:
    assert examined("PRF303", name).verdict is Verdict.PASS
