"""The Triton kernels: the oracle's results on a GPU, and on a CPU as Triton interprets them."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from nsa.ops.api import nsa_attention

from .cases import GEOMETRIES, Case, inputs
from .triton_cases import COMPRESSED, SELECTED, Sizes, drawn_slots, errors_of_compressed, errors_of_selected

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_interpreted_on_a_cpu_they_equal_the_oracle():
    command = [sys.executable, "-m", "tests.nsa.ops.triton_cases"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(SELECTED) + len(COMPRESSED)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [pytest.param(sizes, id=name) for name, sizes in SELECTED.items()])
def test_the_selected_branch_equals_the_oracle(sizes: Sizes, dtype: torch.dtype):
    found = errors_of_selected(sizes, dtype, "cuda")
    assert all(error <= 8 * torch.finfo(dtype).eps for error in found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [pytest.param(sizes, id=name) for name, sizes in COMPRESSED.items()])
def test_the_compressed_branch_equals_the_oracle(sizes: Sizes, dtype: torch.dtype):
    found = errors_of_compressed(sizes, dtype, "cuda")
    assert found.pop("probabilities") <= 1e-5  # products of half precision are exact in float32
    assert all(error <= 8 * torch.finfo(dtype).eps for error in found.values()), found


@pytest.mark.gpu
def test_the_same_inputs_give_the_same_bits():
    case = Case(513, 6, (64, 64), torch.bfloat16, GEOMETRIES[1])
    seen = []
    for _ in range(3):
        tensors = {name: x.detach().cuda().requires_grad_() for name, x in inputs(case).items()}
        out = nsa_attention(**tensors, geometry=case.geometry, impl="triton").compressed
        out = out + nsa_attention(**tensors, geometry=case.geometry, impl="triton").selected
        leaves = [x for name, x in tensors.items() if "win" not in name and name != "gates"]
        seen.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    assert all(torch.equal(first, other) for again in seen[1:] for first, other in zip(seen[0], again, strict=True))


@pytest.mark.gpu
def test_a_second_derivative_is_refused():
    from nsa.ops.compress import triton as compress
    from nsa.ops.select import triton as select

    sizes = SELECTED["six-heads"]
    q, k, v = sizes.leaves(sizes.num_tokens, torch.bfloat16, "cuda")
    selected = select.selected_attention(q, k, v, drawn_slots(sizes, "cuda"), sizes.geometry)
    num_keys = sizes.geometry.num_compressed(sizes.num_tokens)
    compressed = compress.compressed_attention(q, k[:, :num_keys], v[:, :num_keys], sizes.geometry, 0)
    for out in (selected, compressed):
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
        for out in (step(), torch.compile(step)())
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
