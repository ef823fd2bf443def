"""Times that may well be small numbers, by their name or by what is written of them, are a note (FWD275)."""

import pytest
from torch import Tensor, nn

from nsa_doctor.core.finding import Verdict
from tests.nsa_doctor.checks.test_lost_times import CastFirst, examined


class SinceAdmission(CastFirst):
    """times [B, S] are hours since admission, at most 48."""


class OfFrames(nn.Module):
    """What is called t may be any number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = CastFirst()

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return self.inner(x, t)


@pytest.mark.parametrize(("make", "words"), [(SinceAdmission, "'hours' of times"), (OfFrames, "t may be any number")])
def test_times_that_may_be_small_are_a_note(make: type[nn.Module], words: str) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert words in result.notes[0]
