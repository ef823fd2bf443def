"""One attention block of m7c_125m beside the same block around dense attention: float32, forward and backward, CPU.

    make bench

The two are timed in turn, so that a noisy machine slows both; what counts is the ratio of their fastest rounds, which
each benchmark prints and keeps in its `extra_info`.
"""

import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa import NSAConfig, NSAttention, load_config

ROUNDS = {512: 9, 1024: 9, 2048: 9, 4096: 5, 8192: 3, 16384: 3}


class DenseAttention(nn.Module):
    """Grouped-query attention of the same shape around torch's fused dense kernel."""

    def __init__(self, config: NSAConfig) -> None:
        super().__init__()
        self.config = config
        self.sizes = [config.n_heads * config.d_k, config.n_kv_groups * config.d_k, config.n_kv_groups * config.d_v]
        self.qkv = nn.Linear(config.dim, sum(self.sizes), bias=False)
        self.out_proj = nn.Linear(config.n_heads * config.d_v, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = (self.config.n_heads, self.config.n_kv_groups, self.config.n_kv_groups)
        q, k, v = (
            part.unflatten(2, (count, -1)).transpose(1, 2)
            for part, count in zip(self.qkv(x).split(self.sizes, 2), heads, strict=True)
        )
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))


@pytest.fixture(scope="module")
def config() -> NSAConfig:
    return load_config("m7c_125m_fast_log").model


@pytest.fixture(scope="module", autouse=True)
def correct(config: NSAConfig) -> None:
    """No speed without a right answer: the block equals its own oracle before it is timed."""
    torch.manual_seed(0)
    fast = NSAttention(config).double()
    oracle = NSAttention(config, impl="reference").double()
    oracle.load_state_dict(fast.state_dict())
    x = torch.randn(1, 200, config.dim, dtype=torch.float64)
    difference = (fast(x) - oracle(x)).abs().max()
    assert bool(difference <= 1e-12), float(difference)


@pytest.mark.parametrize("num_tokens", ROUNDS)
def test_block_beside_dense(
    benchmark: BenchmarkFixture, config: NSAConfig, capsys: pytest.CaptureFixture[str], num_tokens: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, num_tokens, config.dim, requires_grad=True)
    weight = torch.randn_like(x)

    def step(module: nn.Module) -> Callable[[], None]:
        return lambda: torch.autograd.backward(module(x), weight)

    sparse_step, dense_step = step(NSAttention(config)), step(DenseAttention(config))
    dense_seconds: list[float] = []

    def time_dense() -> None:
        start = time.perf_counter()
        dense_step()
        dense_seconds.append(time.perf_counter() - start)

    benchmark.group = "block, forward + backward"
    benchmark.pedantic(sparse_step, setup=time_dense, rounds=ROUNDS[num_tokens], warmup_rounds=1)
    sparse, dense = benchmark.stats.stats.min, min(dense_seconds[1:])  # the first was a warm-up
    benchmark.extra_info.update(dense_seconds=dense, ratio=sparse / dense)
    with capsys.disabled():
        print(f"\nS={num_tokens}: NSA / dense = {sparse / dense:.2f}")
