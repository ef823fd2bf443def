"""The Triton kernels: the oracle's results on a GPU, and on a CPU as Triton interprets them."""

import importlib.util
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from nsa.ops.api import nsa_attention
from nsa.ops.geometry import Geometry

from .cases import GEOMETRIES, Case, inputs
from .triton_cases import BRANCHES, SELECTED, choices_with_ties, drawn_slots

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_interpreted_on_a_cpu_they_equal_the_oracle():
    command = [sys.executable, "-m", "tests.nsa.ops.triton_cases"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == sum(len(cases) for cases, _ in BRANCHES.values())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("branch", "name"), [(branch, name) for branch, (cases, _) in BRANCHES.items() for name in cases]
)
def test_they_equal_the_oracle(branch: str, name: str, dtype: torch.dtype):
    cases, errors = BRANCHES[branch]
    found = errors(cases[name], dtype, "cuda")
    for in_float32 in ("norm", "gap"):  # products of half precision are exact in float32
        assert found.pop(in_float32, 0) <= 1e-5, found
    assert all(error <= 8 * torch.finfo(dtype).eps for error in found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("num_blocks", [32, 300, 1000])
def test_ties_are_chosen_as_plain_torch_chooses_them(num_blocks: int):
    assert torch.equal(*choices_with_ties("cuda", num_blocks))


BRANCH_NAMES = ("compressed", "selected", "sliding", "slots")


def drawn_on_gpu(num_tokens: int) -> dict[str, torch.Tensor]:
    case = Case(num_tokens, 6, (64, 64), torch.bfloat16, GEOMETRIES[1])
    return {name: x.detach().cuda().repeat(2, 1, 1, 1).requires_grad_() for name, x in inputs(case).items()}


def branches_of(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    result = nsa_attention(**tensors, geometry=GEOMETRIES[1], impl="triton")
    return [getattr(result, name) for name in BRANCH_NAMES]


@pytest.mark.gpu
def test_the_same_inputs_give_the_same_bits():
    seen = []
    for _ in range(20):
        tensors = drawn_on_gpu(513)
        result = nsa_attention(**tensors, geometry=GEOMETRIES[1], impl="triton")
        seen.append((*result, *torch.autograd.grad(result.out.square().sum(), list(tensors.values()))))
    assert all(torch.equal(first, other) for again in seen[1:] for first, other in zip(seen[0], again, strict=True))


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone():
    tensors = drawn_on_gpu(513)
    alone = branches_of({name: x[1:] for name, x in tensors.items()})
    assert all(torch.equal(whole[1:], part) for whole, part in zip(branches_of(tensors), alone, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 256, 257, 500, 512])
def test_a_prefix_has_the_same_bits_whatever_follows(length: int):
    tensors, num_blocks = drawn_on_gpu(513), GEOMETRIES[1].num_compressed(length)
    prefix = {name: x[:, : num_blocks if "cmp" in name else length] for name, x in tensors.items()}
    whole = branches_of(tensors)
    assert all(torch.equal(x[:, :length], part) for x, part in zip(whole, branches_of(prefix), strict=True))


@pytest.mark.gpu
def test_keys_give_the_same_bits_however_they_are_loaded():
    from nsa.ops.compress import triton

    torch.manual_seed(0)
    q = torch.randn(1, 1500, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(1, 186, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seen = []
    for least_tiled in (0, 1 << 20):
        with patch.object(triton, "_LEAST_TILED", least_tiled):
            out, norm = triton.compressed_attention(q, k, v, GEOMETRIES[1], 0)
            seen.append((out, norm, *torch.autograd.grad(out.square().sum(), q)))
    assert all(torch.equal(tiled, loaded) for tiled, loaded in zip(*seen, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("num_queries", [1, 7, 100, 300])
def test_the_last_queries_have_the_same_bits_alone(num_queries: int):
    tensors = drawn_on_gpu(513)
    last = {name: x[:, -num_queries:] if name in ("q", "gates") else x for name, x in tensors.items()}
    whole = branches_of(tensors)
    assert all(torch.equal(x[:, -num_queries:], part) for x, part in zip(whole, branches_of(last), strict=True))


@pytest.mark.gpu
def test_a_row_of_more_elements_than_int32_counts_is_read_right():
    from nsa.ops.select import triton

    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs a GPU with 60 GiB")
    num_tokens, last, geometry = 2**18 + 64, 64, Geometry(n_sel=3)
    torch.manual_seed(0)
    q, grad = (torch.randn(1, num_tokens, 64, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(1, num_tokens, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    newest = torch.arange(num_tokens, device="cuda") // geometry.l_sel
    slots = torch.stack((newest - 2, newest - 1, newest), -1).clamp(min=-1)[None, :, None].expand(1, -1, 4, -1)

    def results(queries: slice) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in (q[:, queries], k, v)]
        out = triton.selected_attention(*leaves, slots[:, queries], geometry)
        gradients = torch.autograd.grad(out, leaves, grad[:, queries])
        return [out[:, -last:], gradients[0][:, -last:], *(x[:, -last:] for x in gradients[1:])]

    whole, part = results(slice(None)), results(slice(-1000, None))
    assert all(torch.equal(x, y) for x, y in zip(whole, part, strict=True))


@pytest.mark.gpu
def test_a_second_derivative_is_refused():
    from nsa.ops.compress import triton as compress
    from nsa.ops.gate import triton as gate
    from nsa.ops.select import triton as select
    from nsa.ops.slide import triton as slide

    sizes = SELECTED["six-heads"]
    q, k, v = sizes.leaves(sizes.num_tokens, torch.bfloat16, "cuda")
    selected = select.selected_attention(q, k, v, drawn_slots(sizes, "cuda"), sizes.geometry)
    num_keys = sizes.geometry.num_compressed(sizes.num_tokens)
    compressed, _ = compress.compressed_attention(q, k[:, :num_keys], v[:, :num_keys], sizes.geometry, 0)
    sliding = slide.sliding_attention(q, k, v, sizes.geometry)
    mixed = gate.mix(selected, compressed, sliding, torch.rand_like(q[:, :, :2, :3]))
    for out in (selected, compressed, sliding, mixed):
        with pytest.raises(RuntimeError, match="second derivatives are not computed here"):
            torch.autograd.grad(out.sum(), q, create_graph=True)


COMPILED = """
import torch
from nsa.ops.api import nsa_attention
from tests.nsa.ops.cases import GEOMETRIES, Case, inputs

geometry = GEOMETRIES[1]
for num_tokens in (513, 300):
    case = Case(num_tokens, 6, (64, 64), torch.bfloat16, geometry)
    tensors = {name: x.detach().cuda().requires_grad_() for name, x in inputs(case).items()}
    slots = nsa_attention(**tensors, geometry=geometry, impl="triton").slots

    def step():
        return nsa_attention(**tensors, geometry=geometry, impl="triton", slots=slots).out

    found = [
        (out, *torch.autograd.grad(out.float().square().sum(), list(tensors.values())))
        for out in (step(), torch.compile(step, fullgraph=True)())
    ]
    print(*(float((a.double() - b.double()).norm() / a.double().norm()) for a, b in zip(*found, strict=True)))
"""


@pytest.mark.gpu
def test_compiled_they_give_what_they_give_eagerly():
    # A process of its own, since the compiler cannot see through the tests' shape checks.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=110, check=False)
    errors = [float(error) for error in done.stdout.split()]
    assert len(errors) == 2 * 9, done.stderr
    assert all(error <= 1e-2 for error in errors), errors
