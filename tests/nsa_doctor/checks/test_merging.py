"""Positions that half precision merges are found where they come from, and are a note where nobody runs it so."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked


def made_in(subject: Subject, dtype: str) -> Callable[[int], nn.Module]:
    return lambda seed: subject.build(seed).to(getattr(torch, dtype))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch):
    """`examined("half_positions")` is the result of FWD304 on that module of `faulty.merging`."""
    monkeypatch.syspath_prepend(HERE)

    def examine(name: str, dtype: str = "float32") -> Result:
        subject = load_subject(SubjectRequest(spec=f"faulty.merging:{name}", lengths=(16,)))
        return run_check(
            registry.load("FWD304"), replace(subject, longest=4096, dtype=dtype, build=made_in(subject, dtype))
        )

    return examine


MERGING = [  # name, how it runs, what the message says
    ("half_positions", "as it is", "cos is taken of angles that are off by up to 1 rad"),
    ("padded_positions", "as it is", "cos is taken of angles"),
    ("half_angles", "as it is", "cos is taken of angles"),
    ("float16_positions", "as it is", "at S=2112: float16 has not all whole numbers beyond 2,048"),
    ("packed_keys", "as it is", "positions that have merged are compared"),
    ("mask_in_half", "as it is", "positions that have merged are compared"),
    ("sorted_in_half", "as it is", "values are rounded to bfloat16 before a choice is made by them"),
    ("top_in_half", "as it is", "values are rounded to bfloat16 before a choice is made by them"),
    ("positions_cast", "under autocast to bfloat16", "cos is taken of angles"),
    ("angles_by_product", "under autocast to bfloat16", "cos is taken of angles"),
    ("mask_in_its_dtype", "under autocast to bfloat16", "positions that have merged are compared"),
    ("alibi_of_positions", "under autocast to bfloat16", "190 of 102,400 differences between positions are wrong"),
    ("indices", "under autocast to bfloat16", "made whole numbers again: 32 of 320 results differ"),
]


@pytest.mark.parametrize(("name", "way", "said"), MERGING, ids=[case[0] for case in MERGING])
def test_positions_that_half_precision_merges_are_found_where_they_come_from(
    name: str, way: str, said: str, examined
) -> None:
    (finding,) = examined(name).findings
    assert said in finding.message
    assert finding.evidence["way"] == way
    assert finding.where.module == "part"
    assert is_marked(finding.where.file, finding.where.line)


def test_what_is_examined_in_half_precision_is_looked_at_in_it(examined) -> None:
    (finding,) = examined("mask_in_its_dtype", dtype="bfloat16").findings
    assert finding.message.startswith("positions that have merged are compared")
    assert is_marked(finding.where.file, finding.where.line)
    assert examined("mask", dtype="bfloat16").findings == ()


def test_positions_that_merge_when_the_whole_module_is_converted_are_a_note(examined) -> None:
    result = examined("positions_of_the_buffer")
    assert result.verdict is Verdict.PASS
    assert ["converted to bfloat16, cos" in note for note in result.notes] == [True]


@pytest.mark.parametrize(
    "name", ["rotary", "mask", "alibi", "mean_so_far", "slow_decay", "log_decay", "top_in_float32", "computed_in_half"]
)
def test_positions_that_stay_apart_and_sums_that_keep_to_float32_pass(name: str, examined) -> None:
    result = examined(name)
    assert (result.verdict, result.notes) == (Verdict.PASS, ())
