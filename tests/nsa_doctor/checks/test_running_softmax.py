"""Scores of a softmax that is written out over pieces of the keys, with a running maximum, are held to their scale."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_scaled import SIZE, WIDTH, Layer
from tests.nsa_doctor.small_subjects import small_subject

PIECE = 8


def in_pieces(scale: float, *, by_the_whole: bool = False) -> Callable[[Layer, Tensor, Tensor, Tensor], Tensor]:
    def attend(_layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        top = q.new_full((*q.shape[:3], 1), -1e30)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(PIECE, 2), v.split(PIECE, 2), strict=True):
            scores = q @ keys.mT * scale
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = (scores - higher).exp(), (top - higher).exp()
            total, out, top = total * fade + weights.sum(-1, keepdim=True), out * fade + weights @ values, higher
        return out / total

    def attend_at_once(_layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * scale
        weights = (scores - scores.max(-1, keepdim=True).values).exp()
        return weights @ v / weights.sum(-1, keepdim=True)

    return attend_at_once if by_the_whole else attend


def examined(attend: Callable[[Layer, Tensor, Tensor, Tensor], Tensor]) -> Result:
    subject = small_subject(lambda: Layer(attend), width=WIDTH, max_length=80, spec=("bidirectional",))
    return run_check(registry.load("FWD230"), subject)


@pytest.mark.parametrize("by_the_whole", [False, True])
@pytest.mark.parametrize(
    ("scale", "words"),
    [(SIZE**0.5, "are multiplied by 4, their square root"), (-(SIZE**-0.5), "so that the keys least like a query")],
)
def test_a_wrong_scale_of_a_softmax_by_hand_is_found(scale: float, words: str, by_the_whole: bool) -> None:
    (finding,) = examined(in_pieces(scale, by_the_whole=by_the_whole)).findings
    assert words in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("by_the_whole", [False, True])
def test_a_right_one_is_silent(by_the_whole: bool) -> None:
    assert examined(in_pieces(SIZE**-0.5, by_the_whole=by_the_whole)).findings == ()
