"""Queries divided by their lengths over the tokens, beside keys over their channels, are found."""

from inspect import getsourcelines

import pytest
import torch
from torch import nn

from nsa_doctor.checks.fwd.fwd261_norm_mixes_tokens import CHECK
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import normed_heads
from tests.nsa_doctor.checks.normed_heads import DIM, FAULTY, HEALTHY, Cosine, OfQueries


def examined(make: type[Cosine], max_length: int = 64) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        max_length=max_length,
        packages=("tests",),
    )
    return run_check(CHECK, subject)


@pytest.mark.parametrize("make", FAULTY)
def test_one_of_two_that_is_divided_over_the_tokens_is_found_there(make: type[Cosine]) -> None:
    (finding,) = examined(make).findings
    lines, first = getsourcelines(make)
    (number,) = (number for number, text in enumerate(lines, first) if text.rstrip().endswith("# here"))
    assert (finding.where.file, finding.where.line) == (normed_heads.__file__, number)


def test_a_finding_says_over_which_axes() -> None:
    (finding,) = examined(OfQueries).findings
    assert finding.message == (
        "[2, 2, 19, 8] is divided by its length over axis 2, 19 tokens, and what it is compared with, [2, 2, 19, 8], "
        "by that over axis 3, its 8 channels"
    )


@pytest.mark.parametrize("make", HEALTHY)
def test_what_is_alike_or_not_compared_is_silent(make: type[Cosine]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_as_many_tokens_as_channels_are_silent() -> None:
    assert examined(OfQueries, max_length=DIM // normed_heads.HEADS).findings == ()
