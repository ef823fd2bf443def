"""The kernels for Hopper GPUs beside the Triton kernels: the same bits forward, the same gradients but for rounding."""

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from nsa.ops.geometry import Geometry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
SHAPES = {  # rows, queries, tokens, groups, heads of a group
    "sixteen-heads": (2, 700, 700, 2, 16),
    "six-heads": (1, 333, 333, 1, 6),
    "the-last-queries": (1, 37, 1200, 2, 16),
    "one-head": (2, 130, 259, 3, 1),
    "sixty-four-heads": (1, 65, 1100, 1, 64),
}
GEOMETRIES = {"as-it-comes": Geometry(), "touching": Geometry(l=16, d=16, l_sel=32, n_sel=4, w=100)}


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    from nsa.ops.kernel_tiles import products_overlap

    if not products_overlap(torch.zeros(1, 128, device="cuda", dtype=torch.bfloat16)):
        pytest.skip("these kernels serve Hopper GPUs under Triton 3.6")


@contextmanager
def kernels(*, overlap: bool) -> Iterator[None]:
    """Let the kernels for Hopper GPUs serve whatever they can, or nothing."""
    from nsa.ops import band_kernels
    from nsa.ops.compress import triton as compress_triton
    from nsa.ops.score import triton as score_triton

    with ExitStack() as patches:
        for module in (band_kernels, compress_triton, score_triton):
            patches.enter_context(patch.object(module, "_LEAST_OVERLAPPED", 1))
        if not overlap:
            for module in (band_kernels, compress_triton, score_triton):
                patches.enter_context(patch.object(module, "products_overlap", lambda *_: False))
        yield


def drawn(shape: tuple[int, ...], dtype: torch.dtype, geometry: Geometry) -> tuple[Tensor, ...]:
    """Queries, keys and values of tokens, and those of compressed blocks."""
    torch.manual_seed(0)
    rows, queries, tokens, groups, heads = shape
    blocks = geometry.num_compressed(tokens)
    sizes = (queries, groups * heads), (tokens, groups), (tokens, groups), (blocks, groups), (blocks, groups)
    return tuple(torch.randn(rows, *size, 128, device="cuda", dtype=dtype) for size in sizes)


def branches(tensors: tuple[Tensor, ...], geometry: Geometry, *, overlap: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, normalisers and slots; gradients of the sliding and the compressed branch."""
    from nsa.ops.compress import triton as compress_triton
    from nsa.ops.score import triton as score_triton
    from nsa.ops.slide import triton as slide_triton

    q, k, v, k_cmp, v_cmp = tensors
    first_query = k.shape[1] - q.shape[1]
    with kernels(overlap=overlap):
        out, norm = slide_triton.forward(q, k, v, geometry)
        out_cmp, norm_cmp = compress_triton.forward(q, k_cmp, v_cmp, geometry, first_query)
        slots = score_triton.choose_slots(q, k_cmp, norm_cmp, geometry, first_query)
        grad = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(q.dtype)
        grads = (
            *slide_triton.gradients(grad, q, k, v, out, norm, geometry),
            *compress_triton.gradients(grad, q, k_cmp, v_cmp, out_cmp, norm_cmp, geometry, first_query),
        )
    return [out, norm, out_cmp, norm_cmp, slots], list(grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_they_give_what_the_triton_kernels_give(shape: tuple[int, ...], geometry: Geometry, dtype: torch.dtype):
    tensors = drawn(shape, dtype, geometry)
    (outputs, grads), (wanted, wanted_grads) = (branches(tensors, geometry, overlap=x) for x in (True, False))
    for name, found, exact in zip(("out", "norm", "out_cmp", "norm_cmp", "slots"), outputs, wanted, strict=True):
        assert torch.equal(found, exact), name
    for found, exact in zip(grads, wanted_grads, strict=True):
        error = (found.double() - exact.double()).norm() / exact.double().norm()
        assert error <= torch.finfo(dtype).eps, error


def test_the_same_inputs_give_the_same_bits():
    tensors, geometry = drawn(SHAPES["sixteen-heads"], torch.bfloat16, Geometry()), Geometry()
    first, *others = (branches(tensors, geometry, overlap=True) for _ in range(20))
    assert all(
        torch.equal(a, b) for other in others for a, b in zip(first[0] + first[1], other[0] + other[1], strict=True)
    )


def test_what_comes_later_changes_no_bit_though_it_is_no_number():
    geometry, length = Geometry(), 450
    q, k, v, k_cmp, v_cmp = drawn(SHAPES["sixteen-heads"], torch.bfloat16, geometry)
    before, _ = branches((q, k, v, k_cmp, v_cmp), geometry, overlap=True)
    for x, num in (
        (q, length),
        (k, length),
        (v, length),
        *((x, geometry.num_compressed(length)) for x in (k_cmp, v_cmp)),
    ):
        x[:, num:] = float("nan")
    after, _ = branches((q, k, v, k_cmp, v_cmp), geometry, overlap=True)
    # Of a tile of rows that is partly later, what is no number may reach the rest.
    assert all(torch.equal(a[:, : length - 2], b[:, : length - 2]) for a, b in zip(before, after, strict=True))


CHOOSING = {  # as above
    "sixteen-heads": (2, 700, 700, 2, 16),
    "ten-heads-of-the-last-queries": (1, 131, 1411, 1, 10),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", CHOOSING.values(), ids=CHOOSING.keys())
def test_the_selected_branch_has_the_same_bits_however_its_keys_are_loaded(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from nsa.ops.select import near_kernels, triton
    from nsa.ops.select.vectorized import choose_slots

    geometry = Geometry(l=32, d=16, l_sel=64, n_sel=5, w=64)
    q, k, v, *_ = drawn(shape, dtype, geometry)
    grad, first_query = torch.randn_like(q), k.shape[1] - q.shape[1]
    importance = torch.rand(*q.shape[:2], k.shape[2], geometry.num_blocks(k.shape[1]), device="cuda")
    slots = choose_slots(importance, geometry, first_query)
    found = []
    for least in (1, 1 << 30):
        with patch.object(near_kernels, "_LEAST_OVERLAPPED", least):
            out, norm = triton.forward(q, k, v, slots, geometry, is_chosen=True)
            found.append((out, norm, *triton.gradients(grad, q, k, v, out, norm, slots, geometry, is_chosen=True)))
    assert all(torch.equal(engine, loaded) for engine, loaded in zip(*found, strict=True))


READ = {  # rows, queries, tokens, groups, heads of each; whether the slots are chosen
    "sixteen-heads": (2, 900, 900, 2, 16, True),
    "thirty-two-heads-of-the-last-queries": (1, 600, 1411, 1, 32, True),
    "sixty-four-heads-and-slots-of-the-future": (1, 600, 777, 1, 64, False),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", READ.values(), ids=READ.keys())
def test_gradients_of_chosen_blocks_have_the_same_bits_however_readers_are_loaded(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from nsa.ops.select import block_kernels, triton
    from nsa.ops.select.vectorized import choose_slots, selected_attention

    geometry = Geometry(l=32, d=16, l_sel=64, n_sel=5, w=64)
    *sizes, is_chosen = shape
    q, k, v, *_ = drawn(tuple(sizes), dtype, geometry)
    grad, num_blocks = torch.randn_like(q), geometry.num_blocks(k.shape[1])
    importance = torch.rand(*q.shape[:2], k.shape[2], num_blocks, device="cuda")
    slots = importance.argsort(-1)[..., :5].contiguous()
    if is_chosen:
        slots = choose_slots(importance, geometry, k.shape[1] - q.shape[1])
    out, norm = triton.forward(q, k, v, slots, geometry, is_chosen)
    found = []
    for least in (1, 1 << 30):
        with patch.object(block_kernels, "_LEAST_OVERLAPPED", least):
            found.append(triton.gradients(grad, q, k, v, out, norm, slots, geometry, is_chosen))
    assert all(torch.equal(engine, loaded) for engine, loaded in zip(*found, strict=True))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(selected_attention(*exact, slots, geometry, is_chosen), exact, grad.double())
    for gradient, of_exact in zip(found[0], wanted, strict=True):
        error = (gradient.double() - of_exact).norm() / of_exact.norm()
        assert error <= torch.finfo(dtype).eps, error
