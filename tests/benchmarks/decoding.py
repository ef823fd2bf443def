"""Decoding one token of every row on one GPU, checked first, then timed beside dense flash attention in the same run.

python -m tests.benchmarks.decoding [--length 65536] [--rows 1,8,64] [--repeats 2000]
"""

import argparse
import platform
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nsa import NSAConfig, NSAttention, Transformer, generate, load_config
from nsa.nn.rope import frequencies
from nsa.ops.decode import token, triton
from nsa.ops.decode.memory import GateParameters, StepMemory, step_memory
from nsa.ops.geometry import Geometry
from tests.nsa.nn.step_cases import CASES, Steps, errors_of_steps, memory_of, rows_of

HEADS, GROUPS, SIZE, GEOMETRY = 64, 4, 128, Geometry()
DTYPE = torch.bfloat16
STEPS_EACH = 16  # in one graph
ROOM = 64  # tokens that are added to a cache at most
M7C: dict[str, object] = {**CASES["m7c"].config, "dim": 256}


def check(num_steps: int) -> None:
    """Prompts of 3, 17 and 512 tokens and steps behind each, against plain decoding and the float64 oracle."""
    cases = {f"prompt {each}, {num_steps} steps": (Steps(each, num_steps, M7C), DTYPE) for each in (3, 17, 512)}
    cases["odd head sizes, float16"] = (CASES["odd-head-sizes"], torch.float16)
    cases["mlp, float16"] = (CASES["shared-touching-blocks"], torch.float16)
    for name, (case, dtype) in cases.items():
        errors = errors_of_steps(case, dtype, "cuda")
        print(f"  {name}: relative error", {key: f"{error:.1e}" for key, error in errors.items()}, flush=True)
        if not (errors["kernels"] <= 2 * errors["plain"] and errors["gap"] <= 1e-4):
            raise SystemExit(f"{name}: decoding by kernels is wrong: nothing is timed")


def filled(rows: int, length: int, room: int) -> StepMemory:
    """Memory of `length` random tokens with room for more."""
    torch.manual_seed(rows)

    def drawn(num: int) -> tuple[Tensor, Tensor]:
        return tuple(torch.randn(rows, GROUPS, num, SIZE, device="cuda", dtype=DTYPE) for _ in range(2))

    capacity = length + room
    turns = frequencies(SIZE, 10_000.0, torch.device("cuda"))
    newest = [
        tuple(x.transpose(1, 2) for x in drawn(num))
        for num in (GEOMETRY.w - 1, length - GEOMETRY.num_compressed(length) * GEOMETRY.d)
    ]
    blocks = drawn(GEOMETRY.num_compressed(capacity))
    memory = step_memory(GEOMETRY, HEADS, 3, turns, blocks, drawn(capacity), *newest, length)
    memory.projected.normal_()
    return memory


def gate_of() -> GateParameters:
    """Random weights of a softmax gate."""
    sizes = (SIZE, SIZE), (SIZE,), (3, SIZE), (3,)
    return GateParameters(*(torch.randn(size, device="cuda", dtype=DTYPE) / 8 for size in sizes), 1.0, None)


def check_bits(length: int, repeats: int) -> None:
    """The same step gives the same bits, again and again, and a row the same bits alone."""
    memory, gate = filled(3, length, ROOM), gate_of()

    def step(part: StepMemory) -> Tensor:
        part.count[:1].fill_(length)
        token.add_token(part, gate, averages=True)
        return triton.attend(part, gate)

    whole = step(memory).clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(repeats):
        differing += (step(memory) != whole).any()
    is_alike = torch.equal(step(rows_of(memory, slice(1, 2))), whole[1:2])
    print(
        f"  {repeats} repeats, {int(differing)} of them with a differing bit; a row alone has the same bits: {is_alike}"
    )
    if int(differing) or not is_alike or not bool(whole.isfinite().all()):
        raise SystemExit("bits differ: nothing is timed")


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`call` as a graph."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def microseconds(
    calls: dict[str, Callable[[], object]], prepare: Callable[[], object], repeats: int
) -> dict[str, list[float]]:
    """Times of each call by device events, the calls taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(repeats + 2):
        for name, call in calls.items():
            prepare()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if index >= 2:
                times[name].append(1000 * start.elapsed_time(end))
    return {name: sorted(found) for name, found in times.items()}


def measure(rows: int, length: int, repeats: int = 21) -> None:
    """One layer's attention with a cache of `length` tokens, in graphs of 16 steps, the L2 cache overwritten between.

    What the overwriting takes is measured alone and taken off.
    """
    memory, gate = filled(rows, length, ROOM), gate_of()
    queries = torch.randn(rows, HEADS, 1, SIZE, device="cuda", dtype=DTYPE)
    dense_k, dense_v = (x[:, :, :length] for x in (memory.k_sel, memory.v_sel))
    flushed = torch.empty(2**28, dtype=torch.int8, device="cuda")

    def add() -> None:
        token.add_token(memory, gate, averages=True)

    def dense(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(queries, dense_k, dense_v, enable_gqa=True)

    def both() -> None:
        add()
        triton.attend(memory, gate)

    alone = {
        "dense, flash": lambda: dense(SDPBackend.FLASH_ATTENTION),
        "dense, cuDNN": lambda: dense(SDPBackend.CUDNN_ATTENTION),
        "nsa, attention": lambda: triton.attend(memory, gate),
        "nsa, and the token added": both,
        "": lambda: None,
    }

    def many(call: Callable[[], object]) -> None:
        for _ in range(STEPS_EACH):
            flushed.zero_()
            call()

    both()
    graphs = {}
    for name, call in alone.items():
        try:
            graphs[name] = captured(partial(many, call)).replay
        except RuntimeError as error:
            print(f"  {name} not measured: {str(error).splitlines()[0][:90]}")
    found = microseconds(graphs, lambda: memory.count[:1].fill_(length), repeats)
    idle = found.pop("")[repeats // 2]
    single = microseconds({name: alone[name] for name in found}, lambda: memory.count[:1].fill_(length), repeats)
    middle = {name: (times[repeats // 2] - idle) / STEPS_EACH for name, times in found.items()}
    print(f"\nB={rows}, {length} tokens, {HEADS} heads, {GROUPS} groups, D={SIZE}, bfloat16: us in a graph, us eager")
    for name, times in found.items():
        low, high = ((times[int(repeats * share)] - idle) / STEPS_EACH for share in (0.1, 0.9))
        ratio = middle["dense, flash"] / middle[name]
        spread = f"({low:.1f} to {high:.1f})"
        print(
            f"  {name:26} {middle[name]:8.1f} {spread:20} {single[name][repeats // 2]:8.1f}   flash / this {ratio:.2f}"
        )


def layer_times(length: int, dim: int = 2048, num_steps: int = 200) -> None:
    """A whole layer, projections too, at one row: by kernels, and by the path that serves what they do not."""
    config = NSAConfig(dim=dim, n_heads=HEADS, n_kv_groups=GROUPS, d_k=SIZE, d_v=SIZE)
    layer = NSAttention(config).to("cuda", DTYPE)
    x = torch.randn(1, 1, dim, device="cuda", dtype=DTYPE)
    cache = layer.new_cache(1, length + ROOM)
    length += ROOM - 4 * num_steps
    for part in torch.randn(1, length, dim, device="cuda", dtype=DTYPE).split(8192, dim=1):
        layer(part, cache)

    def seconds(call: Callable[[], object]) -> float:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(num_steps):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / num_steps

    eager = seconds(lambda: layer(x, cache))
    memory = memory_of(cache)
    graph = captured(lambda: layer(x, cache))
    replayed = seconds(lambda: (memory.count[:1].fill_(length), graph.replay()))
    cache.length -= 1  # the one that was captured
    plain = seconds(lambda: layer.out_proj(layer.branches(x, cache).gated.flatten(2)))
    print(f"\na layer of width {dim} with a cache of {length} tokens, one row, ms a token:")
    print(f"  by kernels {1000 * eager:.3f}, replayed {1000 * replayed:.3f}, plain {1000 * plain:.3f}", flush=True)


def generation(rows: int, prompt: int = 512, num_tokens: int = 256) -> None:
    """Tokens a second that `generate` makes with m7c_125m, all rows together, the prompt's pass included."""
    torch.manual_seed(0)
    model = Transformer(load_config("m7c_125m_fast_log").model).to("cuda", DTYPE)
    ids = torch.randint(model.config.vocab_size, (rows, prompt), device="cuda")

    def speed(num: int, cuda_graph: bool | None) -> tuple[float, Tensor]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        made = generate(model, ids, num, cuda_graph=cuda_graph)
        torch.cuda.synchronize()
        return rows * num / (time.perf_counter() - start), made

    speed(20, True)
    (replayed, first), (eager, second) = speed(num_tokens, True), speed(num_tokens, False)
    longer, _ = speed(4 * num_tokens, True)
    alone = 3 / (4 / longer - 1 / replayed)  # without the prompt and the capture
    with patch.object(NSAttention, "why_not_stepped", lambda *_: "compared"):
        before, third = speed(num_tokens // 4, False)
    pairs = (first, second), (first[:, : third.shape[1]], third)
    same = [int((a == b).all(0).long().cumprod(0).sum()) - prompt for a, b in pairs]
    print(f"  B={rows}: {before:.0f} tokens/s plain, {eager:.0f} by kernels, {replayed:.0f} in a graph,", flush=True)
    print(f"    of which {alone:.0f} a second once it is captured")
    print(f"    a graph gives the first {same[0]} tokens of the kernels alone and {same[1]} of plain decoding")


@torch.no_grad()
def main() -> None:
    """Check, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=65_536 - ROOM)
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {platform.machine()}")
    check(options.steps)
    check_bits(options.length, options.repeats)
    for rows in options.rows.split(","):
        measure(int(rows), options.length)
        torch.cuda.empty_cache()
    layer_times(options.length)
    print("\ngenerate, m7c_125m, prompts of 512 tokens:")
    for rows in (1, 8):
        generation(rows)


if __name__ == "__main__":
    main()
