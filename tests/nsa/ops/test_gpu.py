"""On a GPU: every implementation that can serve gives the oracle's results, forward and every gradient."""

import importlib.util

import pytest
import torch
from torch import Tensor

from nsa.backends import Impl
from nsa.ops.api import nsa_attention
from nsa.ops.geometry import Geometry
from nsa.ops.select import reference, vectorized
from nsa_doctor.probes.tensors.tolerance import deviation, largest

from .cases import GEOMETRIES, Case, dense, inputs
from .test_vectorized import BRANCHES, gradients

pytestmark = pytest.mark.gpu
HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
HAS_TRITON = importlib.util.find_spec("triton") is not None
TRITON = pytest.param("triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed"))
FLASH = pytest.param("flash", marks=pytest.mark.skipif(not HAS_FLASH, reason="flash-attn is not installed"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("head_sizes", [(64, 64), (128, 128), (192, 128)], ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 31, 65, 513, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", ["vectorized", "fused", TRITON, FLASH])
def test_equals_the_oracle(
    impl: Impl, dtype: torch.dtype, num_tokens: int, geometry: Geometry, head_sizes: tuple[int, int]
) -> None:
    if impl in ("triton", "flash") and dtype == torch.float32:
        pytest.skip("the kernels need half precision")
    check_against_the_oracle(impl, Case(num_tokens, 6, head_sizes, dtype, geometry))


def check_against_the_oracle(impl: Impl, case: Case) -> None:
    geometry, tensors = case.geometry, inputs(case)
    exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    on_gpu = {name: x.detach().cuda().requires_grad_() for name, x in tensors.items()}
    truth = nsa_attention(**exact, geometry=geometry, impl="reference")
    result = nsa_attention(**on_gpu, geometry=geometry, slots=truth.slots.cuda(), impl=impl)
    # Matrix units take half-precision operands, probabilities too, so plain torch is measured the same way.
    plain = dense(on_gpu, truth.slots.cuda(), geometry, half_products=True)
    assert_close(case, result._asdict(), plain, truth._asdict(), [on_gpu, on_gpu, exact])


def assert_close(
    case: Case,
    result: dict[str, Tensor],
    plain: dict[str, Tensor],
    truth: dict[str, Tensor],
    leaves: list[dict[str, Tensor]],
) -> None:
    num_terms = case.num_tokens * case.heads_per_group
    for name in BRANCHES:
        compared = deviation(result[name], plain[name], truth[name], num_terms=num_terms)
        assert compared.is_within, (name, compared)
    outs = (result["out"], plain["out"], truth["out"])
    grads = [gradients(out, list(leaf.values())) for out, leaf in zip(outs, leaves, strict=True)]
    scale = max(largest(grad) for grad in grads[2])
    for name, *per_path in zip(leaves[0], *grads, strict=True):
        compared = deviation(*per_path, num_terms=num_terms, scale=scale)
        assert compared.is_within, (f"gradient of {name}", compared)


@pytest.mark.parametrize("impl", ["vectorized", "fused", TRITON, FLASH])
@pytest.mark.parametrize("num_queries", [1, 3, 17])
def test_the_last_queries_alone_give_their_part_of_the_whole(impl: Impl, num_queries: int) -> None:
    geometry = GEOMETRIES[1]
    tensors = {name: x.detach().cuda() for name, x in inputs(Case(300, 2, (64, 64), torch.bfloat16, geometry)).items()}
    whole = nsa_attention(**tensors, geometry=geometry, impl=impl)
    slots = whole.slots[:, -num_queries:]
    last = {name: x[:, -num_queries:] if name in ("q", "gates") else x for name, x in tensors.items()}
    part = nsa_attention(**last, geometry=geometry, slots=slots, impl=impl)
    for branch in BRANCHES:
        expected = getattr(whole, branch)[:, -num_queries:]
        compared = deviation(getattr(part, branch), expected, expected.double(), num_terms=512)
        assert compared.error <= 2 * compared.bound, branch


@pytest.mark.parametrize("impl", ["vectorized", "fused", TRITON, FLASH])
def test_packed_equals_separate(impl: Impl) -> None:
    geometry, lengths = GEOMETRIES[1], [70, 1, 229]
    case = Case(300, 2, (64, 64), torch.bfloat16, geometry)
    tensors = {name: x[:1].detach().cuda() for name, x in inputs(case).items() if "cmp" not in name}
    blocks = sum(geometry.num_compressed(length) for length in lengths)
    compressed = {f"{x}_cmp": torch.randn_like(tensors[f"{x}_sel"][:, :blocks]) for x in ("k", "v")}
    offsets = torch.tensor([0, 70, 71, 300], dtype=torch.int32, device="cuda")
    packed = nsa_attention(**tensors, **compressed, geometry=geometry, cu_seqlens=offsets, impl=impl)
    start = block = 0
    for length in lengths:
        num_blocks = geometry.num_compressed(length)
        part = {name: x[:, start : start + length] for name, x in tensors.items()}
        part |= {name: x[:, block : block + num_blocks] for name, x in compressed.items()}
        alone = nsa_attention(**part, geometry=geometry, impl=impl)
        for branch in BRANCHES:
            joined, single = getattr(packed, branch)[:, start : start + length], getattr(alone, branch)
            assert deviation(joined, single, single.double(), num_terms=length).is_within, branch
        start, block = start + length, block + num_blocks


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("impl", ["vectorized", "fused", TRITON, FLASH])
def test_nothing_waits_for_the_device(impl: Impl) -> None:
    case = Case(1000, 6, (64, 64), torch.bfloat16, GEOMETRIES[0])
    tensors = {name: x.detach().cuda().requires_grad_() for name, x in inputs(case).items()}
    nsa_attention(**tensors, geometry=case.geometry, impl=impl).out.sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        nsa_attention(**tensors, geometry=case.geometry, impl=impl).out.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_blocks_are_chosen_on_a_gpu_as_the_oracle_chooses_them() -> None:
    geometry = Geometry(l=32, d=16, l_sel=64, n_sel=5, w=64)
    torch.manual_seed(0)
    importance = torch.randint(4, (2, 700, 3, 11)).float()  # ties everywhere
    importance[0, 650, 0] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -1.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0])
    expected = reference.choose_slots(importance.nan_to_num(0.0).clamp_min(0), geometry, 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert torch.equal(vectorized.choose_slots(importance.cuda().to(dtype), geometry, 0).cpu(), expected)
