"""Training steps of a model with NSA beside the same model with dense attention, eager and compiled, in one run.

python -m tests.benchmarks.training [--config NAME] [--lengths 1024,2048,16384] [--device cuda] [--modes eager]

First the losses of the fast path are held to those of the reference; then each model takes steps of forward, backward
and AdamW on as many rows as fit. Last comes what takes the time of an eager step, by branch and by operator.
"""

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa.backends import BRANCHES, route
from nsa.config import ModelConfig, load_config
from nsa.nn import Transformer
from nsa.nn.linear import linear
from nsa.nn.rope import rotate, rotation
from nsa.ops.api import compress_tokens, nsa_attention
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import fused as slide_fused
from nsa.ops.slide import vectorized as slide_vectorized
from nsa.train.objective import Objective

STEPS, WARMUP = 6, 3
MOST_TOKENS = 1 << 17  # of one step; halved until it fits


class DenseAttention(nn.Module):
    """Causal grouped-query attention of the same heads, by torch's fused kernels, in NSA's place."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        sizes = (config.n_heads * config.d_k, config.n_kv_groups * config.d_k, config.n_kv_groups * config.d_v)
        self.sizes = sizes
        self.qkv = linear(config.dim, sum(sizes))
        self.out_proj = linear(config.n_heads * config.d_v, config.dim)

    def forward(self, x: Tensor, cache: None = None, cu_seqlens: None = None, context: None = None) -> Tensor:
        config = self.config
        q, k, v = self.qkv(x).split(self.sizes, dim=-1)
        turn = rotation(torch.arange(x.shape[1], device=x.device), config.d_k, config.rope_theta, q.dtype)
        q, k = (rotate(each.unflatten(-1, (-1, config.d_k)), turn).transpose(1, 2) for each in (q, k))
        v = v.unflatten(-1, (-1, config.d_v)).transpose(1, 2)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))


def made(config: ModelConfig, kind: str, device: str, *, compiled: bool = False) -> Objective:
    torch.manual_seed(0)
    model = Transformer(config, "reference" if kind == "reference" else "auto")
    if kind == "dense":
        for block in model.blocks:
            block.attention = DenseAttention(config)
    model.to(device)
    if compiled:
        for block in model.blocks:
            block.compile()
    return Objective(model)


def check(config: ModelConfig, device: str) -> None:
    """The loss of the path that is timed against the reference's, in float32 on one layer."""
    one = config.model_copy(update={"n_layers": 1})
    ids = torch.randint(config.vocab_size, (2, 257), device=device)
    losses = [
        float(made(one, kind, device)(ids, torch.zeros_like(ids)).detach()) / 512 for kind in ("reference", "nsa")
    ]
    assert abs(losses[0] - losses[1]) < 1e-4 * losses[0], losses
    print(f"checked: loss {losses[1]:.6f}, the reference's {losses[0]:.6f}")


def steps_of(objective: Objective, ids: Tensor, device: str) -> Iterator[None]:
    """Training steps, one at a time."""
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=device == "cuda")
    while True:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = objective(ids, torch.zeros_like(ids))
        (loss / ids.numel()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def seconds_per_step(step: Callable[[], None], device: str) -> float:
    """The median, after those that warm up."""
    found = []
    for _ in range(WARMUP + STEPS):
        begin = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return sorted(found[WARMUP:])[STEPS // 2]


def timed(config: ModelConfig, kind: str, length: int, device: str, compiled: bool) -> tuple[int, float]:
    """Rows of a step and tokens per second with as many rows as fit."""
    rows = max(1, (MOST_TOKENS if device == "cuda" else 1 << 12) // length)
    while True:
        torch._dynamo.reset()  # what was compiled for an earlier model is of no use to this one
        try:
            objective = made(config, kind, device, compiled=compiled)
            ids = torch.randint(config.vocab_size, (rows, length + 1), device=device)
            steps = steps_of(objective, ids, device)
            return rows, rows * length / seconds_per_step(lambda steps=steps: next(steps), device)
        except torch.OutOfMemoryError:
            if rows == 1:
                return 0, 0.0
            rows //= 2
        objective = steps = ids = None
        gc.collect()
        torch.cuda.empty_cache()


def by_part(config: ModelConfig, length: int, device: str) -> None:
    """Milliseconds of forward and backward of what one layer does, each part alone, and of the head."""
    rows = max(1, (MOST_TOKENS // 4 if device == "cuda" else 1 << 12) // length)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    geometry, heads, groups = config.geometry, config.n_heads, config.n_kv_groups
    model = Transformer(config).to(device, dtype)
    block = model.blocks[0]

    def random(*shape: int) -> Tensor:
        return torch.randn(rows, length, *shape, device=device, dtype=dtype, requires_grad=True)

    x, q, gates = random(config.dim), random(heads, config.d_k), random(groups, 3)
    k, v = random(groups, config.d_k), random(groups, config.d_v)
    k_cmp, v_cmp = (compress_tokens(each.detach(), geometry).requires_grad_() for each in (k, v))
    tensors = q, k_cmp, v_cmp, k, v, k, v, gates
    slots = nsa_attention(*tensors, geometry).slots
    routes = route(x.device, dtype, max(config.d_k, config.d_v))
    calls = {
        "attention layer": lambda: block.attention(x),
        "  its projections": lambda: block.attention.qkv(x).q,
        "  its three branches, choice and mix": lambda: nsa_attention(*tensors, geometry).out,
        "    the same, choice held": lambda: nsa_attention(*tensors, geometry, slots=slots).out,
        "    compressed branch, plain torch": lambda: compress_vectorized.compressed_attention(
            q, k_cmp, v_cmp, geometry, 0
        )[0],
        "    selected branch, plain torch": lambda: select_vectorized.selected_attention(q, k, v, slots, geometry),
        "    sliding branch, plain torch": lambda: slide_vectorized.sliding_attention(q, k, v, geometry),
        "    sliding branch, fused": lambda: slide_fused.sliding_attention(q, k, v, geometry),
        "mlp": lambda: block.mlp(block.mlp_norm(x)),
        "head, without loss": lambda: model.logits(x),
    }
    if routes.selected.effective == "triton":
        from nsa.ops.compress import triton as compress_triton
        from nsa.ops.select import triton as select_triton

        calls["    compressed branch, Triton"] = lambda: compress_triton.compressed_attention(
            q, k_cmp, v_cmp, geometry, 0
        )
        calls["    selected branch, Triton"] = lambda: select_triton.selected_attention(q, k, v, slots, geometry)
    served = ", ".join(f"{branch} {getattr(routes, branch).effective}" for branch in BRANCHES)
    print(f"\nby part, S={length}, {rows} rows; {served}")
    for name, call in calls.items():

        def step(call: Callable[[], Tensor] = call) -> None:
            call().sum().backward()

        print(f"{name:40s} {seconds_per_step(step, device) * 1e3:9.2f} ms", flush=True)


def profile(config: ModelConfig, length: int, device: str) -> None:
    """What takes the time of a step, by operator, forward and backward apart."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] * (device == "cuda")
    rows = max(1, (MOST_TOKENS // 4 if device == "cuda" else 1 << 12) // length)
    ids = torch.randint(config.vocab_size, (rows, length + 1), device=device)
    steps = steps_of(made(config, "nsa", device), ids, device)
    for _ in range(WARMUP):
        next(steps)
    with torch.profiler.profile(activities=activities) as seen:
        next(steps)
        if device == "cuda":
            torch.cuda.synchronize()
    by = "device_time_total" if device == "cuda" else "cpu_time_total"
    print(seen.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="m7c_125m_fast_log")
    parser.add_argument("--lengths", default="1024,2048,16384")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--modes", default="eager,compiled")
    asked = parser.parse_args()
    config = load_config(asked.config).model
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, {asked.config}, {'bfloat16' if asked.device == 'cuda' else 'float32'}")
    check(config, asked.device)
    print("      S attention mode     rows   tokens/s")
    lengths = [int(length) for length in asked.lengths.split(",")]
    for length in lengths:
        for mode in asked.modes.split(","):
            for kind in ("nsa", "dense"):
                rows, speed = timed(config, kind, length, asked.device, mode == "compiled")
                print(f"{length:7d} {kind:9s} {mode:8s} {rows:4d} {speed:10,.0f}", flush=True)
    for length in lengths:
        by_part(config, length, asked.device)
    profile(config, lengths[0], asked.device)


if __name__ == "__main__":
    main()
