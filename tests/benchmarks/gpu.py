"""NSA beside dense attention on one GPU: forward and backward, checked first, then timed side by side in one run.

python -m tests.benchmarks.gpu [--lengths 4096,16384,65536]
"""

import argparse
import importlib.util
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nsa.backends import route, why_not_flash
from nsa.ops.api import compress_tokens, nsa_attention
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.geometry import Geometry
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import fused as slide_fused
from nsa.ops.slide import vectorized as slide_vectorized

HEADS, GROUPS, SIZE, GEOMETRY = 64, 4, 128, Geometry()
KERNELS = ["triton"] if importlib.util.find_spec("triton") else []
NAMES = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")


def inputs(length: int, heads: int = HEADS, groups: int = GROUPS) -> dict[str, Tensor]:
    """bfloat16 leaves; the compressed tokens are made from others, as a layer would."""
    torch.manual_seed(length)
    shapes = [(heads, SIZE)] + [(groups, SIZE)] * 6 + [(groups, 3)]
    tensors = {
        name: torch.randn(1, length, *shape, device="cuda", dtype=torch.bfloat16)
        for name, shape in zip(NAMES, shapes, strict=True)
    }
    tensors |= {name: compress_tokens(tensors[name], GEOMETRY) for name in ("k_cmp", "v_cmp")}
    return {name: x.requires_grad_() for name, x in tensors.items()}


def milliseconds(step: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `step` by device events, after two warm-up calls."""
    times = []
    for index in range(repeats + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        if index >= 2:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def forward_backward(call: Callable[[], Tensor]) -> Callable[[], None]:
    """One training step's worth of `call`, without an optimizer."""
    weight = torch.randn_like(call())
    return lambda: torch.autograd.backward(call(), weight)


def check(length: int) -> None:
    """Outputs and gradients against the float64 oracle, on 8 heads in 2 groups so that the oracle ends."""
    tensors = inputs(length, heads=8, groups=2)
    exact = {name: x.detach().double().cpu().requires_grad_() for name, x in tensors.items()}
    truth = nsa_attention(**exact, geometry=GEOMETRY, impl="reference")
    for impl in ("vectorized", "fused", *KERNELS, *([] if no_flash() else ["flash"])):
        result = nsa_attention(**tensors, geometry=GEOMETRY, slots=truth.slots.cuda(), impl=impl)
        weight = torch.randn(truth.out.shape, dtype=torch.float64)
        wanted = torch.autograd.grad((truth.out * weight).sum(), list(exact.values()), retain_graph=True)
        got = torch.autograd.grad((result.out * weight.cuda()).sum(), list(tensors.values()))
        pairs = zip(("out", *NAMES), (result.out, *got), (truth.out, *wanted), strict=True)
        errors = {name: ((a.cpu().double() - b).norm() / b.norm()).item() for name, a, b in pairs}
        print(f"S={length} {impl}: relative error", {name: f"{error:.1e}" for name, error in errors.items()})
        if not all(error <= 2e-2 for error in errors.values()):
            raise SystemExit(f"{impl} is wrong at S={length}: nothing is timed")


def no_flash() -> str | None:
    return why_not_flash(torch.device("cuda"), torch.bfloat16, SIZE)


def measure(length: int) -> None:
    """Times of one length, in one table."""
    tensors = inputs(length)
    q, k, v = (tensors[name].detach().transpose(1, 2).contiguous().requires_grad_() for name in NAMES[:1] + NAMES[3:5])
    rows: dict[str, Callable[[], Tensor]] = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def dense(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        rows[f"dense, {backend.name.lower()}"] = dense
    for impl in ("vectorized", "fused", *KERNELS, *([] if no_flash() else ["flash"])):
        rows[f"nsa, {impl}"] = lambda impl=impl: nsa_attention(**tensors, geometry=GEOMETRY, impl=impl).out
    slots = nsa_attention(**tensors, geometry=GEOMETRY).slots
    selected = (tensors["q"], tensors["k_sel"], tensors["v_sel"], slots, GEOMETRY)
    compressed = (tensors["q"], tensors["k_cmp"], tensors["v_cmp"], GEOMETRY, 0)
    window = (tensors["q"], tensors["k_win"], tensors["v_win"], GEOMETRY)
    rows["  selected, vectorized"] = lambda: select_vectorized.selected_attention(*selected)
    rows["  compressed, vectorized"] = lambda: compress_vectorized.compressed_attention(*compressed)[0]
    rows["  sliding, vectorized"] = lambda: slide_vectorized.sliding_attention(*window)
    rows["  sliding, fused"] = lambda: slide_fused.sliding_attention(*window)
    if KERNELS:
        rows |= by_triton(selected, compressed, window)
    print(
        f"\nS={length}, {HEADS} heads, {GROUPS} groups, D={SIZE}, bfloat16: forward ms, forward + backward ms, peak GiB"
    )
    for name, call in rows.items():
        try:
            torch.cuda.reset_peak_memory_stats()
            with torch.no_grad():
                forward = milliseconds(call)
            both = milliseconds(forward_backward(call))
            print(f"  {name:28} {forward:9.2f} {both:9.2f} {torch.cuda.max_memory_allocated() / 2**30:7.2f}")
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(f"  {name:28} not measured: {str(error).splitlines()[0][:90]}")
        finite = all(bool(x.grad.isfinite().all()) for x in tensors.values() if x.grad is not None)
        if not finite:
            raise SystemExit(f"{name} gives a gradient that is not finite at S={length}")
        for x in tensors.values():
            x.grad = None


def by_triton(
    selected: tuple[Any, ...], compressed: tuple[Any, ...], window: tuple[Any, ...]
) -> dict[str, Callable[[], Tensor]]:
    """Each branch by our kernels, and the choice of blocks beside the branch that it is made from."""
    from nsa.ops.compress import triton as compress_triton
    from nsa.ops.score import triton as score_triton
    from nsa.ops.select import triton as select_triton
    from nsa.ops.slide import triton as slide_triton

    def compressed_and_choice() -> Tensor:
        out, norm = compress_triton.compressed_attention(*compressed)
        score_triton.choose_slots(compressed[0], compressed[1], norm, GEOMETRY, 0)
        return out

    return {
        "  selected, triton": lambda: select_triton.selected_attention(*selected),
        "  compressed, triton": lambda: compress_triton.compressed_attention(*compressed)[0],
        "  compressed, choice, triton": compressed_and_choice,
        "  sliding, triton": lambda: slide_triton.sliding_attention(*window),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="4096,16384,65536")
    parser.add_argument("--check", default="1000")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}")
    print("flash-attn:", no_flash() or "can serve", "|", route(torch.device("cuda"), torch.bfloat16, SIZE).sliding)
    for length in arguments.check.split(","):
        check(int(length))
    for length in arguments.lengths.split(","):
        measure(int(length))


if __name__ == "__main__":
    main()
