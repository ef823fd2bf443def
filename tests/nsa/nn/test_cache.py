from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa import Geometry
from nsa.nn.cache import NSACache, Tokens
from nsa.ops.compress.reference import compress, phi_avg

GEOMETRY = Geometry(l=4, d=2, l_sel=4, n_sel=3, w=5)


@pytest.fixture
def tokens() -> Tokens:
    """Sixty tokens of two rows and three groups, a different Dk and Dv, every branch its own."""
    return Tokens(*(torch.randn(2, 60, 3, size) for size in (4, 6) * 3))


def average(x: Tensor) -> Tensor:
    return compress(x, phi_avg, GEOMETRY)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 7, 11, 60], ids=lambda chunk: f"chunk{chunk}")
def test_each_branch_is_handed_what_its_queries_may_see(
    tokens: Tokens, chunk: int, assert_close: Callable[..., None]
) -> None:
    cache = NSACache(GEOMETRY, 2, 1)
    for start in range(0, 60, chunk):
        end = min(start + chunk, 60)
        handed = cache.append(Tokens(*(x[:, start:end] for x in tokens)), average, average)
        assert cache.length == end
        first_seen = max(0, start - GEOMETRY.w + 1)
        assert torch.equal(handed.k_sel, tokens.k_sel[:, :end])
        assert torch.equal(handed.v_sel, tokens.v_sel[:, :end])
        assert torch.equal(handed.k_win, tokens.k_win[:, first_seen:end])
        assert torch.equal(handed.v_win, tokens.v_win[:, first_seen:end])
        assert handed.k_cmp.shape[1] == handed.v_cmp.shape[1] == GEOMETRY.num_compressed(end)
        if GEOMETRY.num_compressed(end):
            assert_close(handed.k_cmp, average(tokens.k_cmp[:, :end]))
            assert_close(handed.v_cmp, average(tokens.v_cmp[:, :end]))


@torch.no_grad()
def test_the_compressor_runs_only_when_a_token_is_due(tokens: Tokens) -> None:
    cache, calls = NSACache(GEOMETRY, 2), []

    def record(x: Tensor) -> Tensor:
        calls.append((cache.length, x.shape[1]))
        return average(x)

    for position in range(11):
        cache.append(Tokens(*(x[:, position : position + 1] for x in tokens)), record, average)
    assert calls == [(4, 4), (6, 4), (8, 4), (10, 4)]


@torch.no_grad()
def test_room_is_made_for_max_length_at_once(tokens: Tokens) -> None:
    cache, sizes = NSACache(GEOMETRY, 2, 200), set()
    for num_tokens in (1, 60, 60, 60, 19):
        cache.append(Tokens(*(x[:, :num_tokens] for x in tokens)), average, average)
        sizes.add(cache.num_bytes())
    assert len(sizes) == 1
