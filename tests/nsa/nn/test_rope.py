import math

import pytest
import torch

from nsa.nn.rope import packed_positions, rotate, rotation


def test_position_zero_turns_nothing() -> None:
    x = torch.randn(2, 1, 3, 8)
    assert torch.equal(rotate(x, rotation(torch.tensor([0]), 8, 10_000.0, x.dtype)), x)


@pytest.mark.parametrize("position", [1, 63, 1000, 1_000_000])
def test_channel_pair_turns_by_position_times_frequency(position: int) -> None:
    x = torch.randn(1, 1, 1, 6, dtype=torch.float64)
    got = rotate(x, rotation(torch.tensor([position]), 6, 500.0, x.dtype)).flatten().tolist()
    for j in range(3):
        angle = position * 500.0 ** (-2 * j / 6)
        a, b = x.flatten()[2 * j].item(), x.flatten()[2 * j + 1].item()
        turned = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
        # The angle itself is known to its own rounding, which a million radians make large.
        assert got[2 * j : 2 * j + 2] == pytest.approx(turned, abs=8 * 2.0**-52 * max(1, angle))


def test_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(query: int, key: int) -> float:
        turns = (rotation(torch.tensor([place]), 16, 10_000.0, q.dtype) for place in (query, key))
        return (rotate(q, next(turns)) * rotate(k, next(turns))).sum().item()

    assert score(905, 900) == pytest.approx(score(5, 0), rel=1e-12)
    assert score(905, 900) != pytest.approx(score(0, 5), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_far_positions_lose_nothing_in_lower_precision(dtype: torch.dtype) -> None:
    x, far = torch.randn(1, 1, 4, 64).to(dtype), torch.tensor([999_999])
    exact = rotate(x.double(), rotation(far, 64, 10_000.0, torch.float64))
    got = rotate(x, rotation(far, 64, 10_000.0, dtype))
    assert got.dtype == dtype
    error = (got.double() - exact).abs().max().item()
    assert error <= 2 * torch.finfo(dtype).eps * x.double().abs().max().item()


def test_heads_in_any_memory_layout_turn_alike() -> None:
    joined = torch.randn(2, 5, 3 * 6 + 1, dtype=torch.float64)  # an odd stride, which complex views refuse
    heads = joined[..., 1:].unflatten(-1, (3, 6))
    turn = rotation(torch.arange(5), 6, 10_000.0, heads.dtype)
    assert torch.equal(rotate(heads, turn), rotate(heads.contiguous(), turn))
    flipped = torch.randn(3, 6, 5, 2, dtype=torch.float64).permute(3, 2, 0, 1)
    assert torch.equal(rotate(flipped, turn), rotate(flipped.contiguous(), turn))


def test_packed_positions_restart_at_every_sequence() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 4, 9], dtype=torch.int32)
    assert packed_positions(cu_seqlens, 9).tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4]
