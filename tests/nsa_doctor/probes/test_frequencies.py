"""Frequencies of positions: which tables tell tokens apart, and which cannot."""

import math

import pytest
import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.frequencies import Ladder, radians_of

_TOKENS = torch.arange(61.0)[:, None]


def _exponents(width: int) -> Tensor:
    return torch.arange(0, width, 2) / width


def _fault(frequencies: Tensor) -> str | None:
    return Ladder(radians_of(_TOKENS * frequencies), Place()).fault


@pytest.mark.parametrize(
    "frequencies",
    [
        pytest.param(10000 ** -_exponents(64), id="ordinary"),
        pytest.param(1e7 ** -_exponents(8), id="four of a large base"),
        pytest.param(torch.cat((10000 ** -_exponents(32),) * 2), id="each twice"),
        pytest.param(torch.cat((5e5 ** -_exponents(32), torch.zeros(16))), id="some channels stay"),
        pytest.param(torch.arange(1, 33) * (2 * math.pi / 64), id="harmonics"),
        pytest.param(torch.randn(32, generator=torch.Generator().manual_seed(0)) * 10, id="drawn"),
        pytest.param(1000 * 10000 ** -_exponents(64), id="positions times a thousand"),
        pytest.param(torch.tensor([1.0, 0.01]), id="two"),
    ],
)
def test_a_ladder_or_what_is_meant_as_none_has_no_fault(frequencies: Tensor) -> None:
    assert _fault(frequencies) is None


@pytest.mark.parametrize(
    ("frequencies", "words"),
    [
        pytest.param(10000 ** _exponents(64), "turn by 1 to 7.5e+03 radians", id="the sign"),
        pytest.param((_exponents(64) * math.log(10000)).exp(), "turn by 1 to 7.5e+03 radians", id="the sign of exp"),
        pytest.param(10000 * _exponents(64), "each of them makes more than half a turn, by 312 to", id="no power"),
        pytest.param(10000.0 ** -torch.arange(0, 64, 2), "one turns by 1 radians and the next", id="no division"),
        pytest.param(1 / (10000 ** torch.arange(0.0, 64, 2) / 64), "one turns by 64 radians", id="brackets"),
        pytest.param(10000.0 ** -(torch.arange(0, 64, 2) // 64), "all 32 turn alike, by 1 radians", id="rounded"),
    ],
)
def test_what_is_no_ladder_is_said(frequencies: Tensor, words: str) -> None:
    assert words in (_fault(frequencies) or "")


def test_angles_that_do_not_grow_evenly_are_no_frequencies() -> None:
    assert not radians_of(torch.randn(61, 32, generator=torch.Generator().manual_seed(0)))
    assert not radians_of(_TOKENS.bfloat16() * torch.ones(32, dtype=torch.bfloat16))


def test_tokens_that_stand_still_before_and_behind_are_left_out() -> None:
    positions = torch.cat((torch.zeros(3), torch.arange(40.0), torch.full((5,), 39.0)))[:, None]
    radians = radians_of(positions * 10000 ** _exponents(64))
    assert len(radians) == 32
    assert "turn by 1 to 7.5e+03 radians" in (Ladder(radians, Place()).fault or "")
    assert Ladder(radians_of(positions * 10000 ** -_exponents(64)), Place()).fault is None
    assert not radians_of(torch.ones(40, 32))
