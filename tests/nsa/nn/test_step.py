"""Single tokens decoded by kernels: the oracle's results, the bits they keep, and what goes another way and why."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from nsa import NSAttention, Transformer, generate
from nsa.backends import why_not_triton
from nsa.nn import step as step_module
from nsa.nn.cache import NSACache, Tokens
from nsa.ops.compress.reference import compress, phi_avg
from nsa.ops.decode.memory import StepMemory
from nsa.ops.geometry import Geometry

from .step_cases import CASES, Steps, error_under_autocast, errors_of_steps, layer_of, memory_of, rows_of

MakeLayer = Callable[..., NSAttention]
MakeModel = Callable[..., Transformer]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
GEOMETRY = Geometry(l=4, d=2, l_sel=4, n_sel=3, w=5)


@needs_triton
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_interpreted_on_a_cpu_they_equal_the_oracle() -> None:
    command = [sys.executable, "-m", "tests.nsa.nn.step_cases"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(CASES) + 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_they_equal_the_oracle(name: str, dtype: torch.dtype) -> None:
    errors = errors_of_steps(CASES[name], dtype, "cuda")
    assert errors["kernels"] <= 2 * errors["plain"], errors
    assert errors["gap"] <= 1e-4, errors


@pytest.mark.gpu
@torch.no_grad()
def test_the_same_step_gives_the_same_bits_and_a_row_the_same_alone() -> None:
    from nsa.ops.decode import token, triton

    case = Steps(3000, 1, {"n_heads": 12, "d_k": 64, "d_v": 64, "l": 32, "d": 16, "l_sel": 64, "w": 512})
    layer = layer_of(case, torch.bfloat16, "cuda")
    x, cache = torch.randn(2, 3001, layer.config.dim, device="cuda", dtype=torch.bfloat16), layer.new_cache(2, 3100)
    layer(x[:, :3000], cache)
    layer(x[:, 3000:], cache)
    gate = step_module.gate_parameters(layer.gate)

    def step(memory: StepMemory, rows: slice) -> Tensor:
        memory.count[:1].fill_(3000)
        token.project(memory, x[rows, 3000:], layer.qkv.weights())
        token.add_token(memory, gate, averages=True)
        return triton.attend(memory, gate).clone()

    whole = step(memory_of(cache), slice(None))
    assert all(torch.equal(step(memory_of(cache), slice(None)), whole) for _ in range(50))
    assert torch.equal(step(rows_of(memory_of(cache), slice(1, 2)), slice(1, 2)), whole[1:])
    with patch.object(triton, "fit_at_once", lambda *_: False):  # as among very many rows
        among_many = rows_of(memory_of(cache), slice(None))
        assert torch.equal(step(among_many, slice(None)), whole)
    assert torch.equal(among_many.importance[..., :45], memory_of(cache).importance[..., :45])  # of blocks not forced


@pytest.mark.gpu
def test_under_autocast_they_give_what_plain_decoding_gives() -> None:
    assert error_under_autocast("cuda") <= 8 * torch.finfo(torch.float16).eps


@pytest.mark.gpu
@torch.no_grad()
def test_chunks_and_single_tokens_take_turns() -> None:
    layer = layer_of(CASES["from-one-token"], torch.bfloat16, "cuda")
    x = torch.randn(2, 90, layer.config.dim, device="cuda", dtype=torch.bfloat16)
    caches = [layer.new_cache(2) for _ in range(2)]
    found: list[list[Tensor]] = [[], []]
    for part in x.split([20, 1, 1, 1, 17, 1, 3, 1, 1, 44], dim=1):
        found[0].append(layer(part, caches[0]))
        assert caches[0].is_stepping == (part.shape[1] == 1)
        found[1].append(layer.out_proj(layer.branches(part, caches[1]).gated.flatten(2)))
    by_kernels, plain = (torch.cat(outputs, dim=1) for outputs in found)
    assert float((by_kernels - plain).norm() / plain.norm()) <= 8 * torch.finfo(torch.bfloat16).eps


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("phi", ["avg", "mlp"])
def test_a_graph_gives_the_tokens_of_single_launches(make_model: MakeModel, phi: str, temperature: float) -> None:
    model = make_model(phi=phi).to("cuda", torch.bfloat16)
    ids = torch.randint(0, 29, (2, 30), device="cuda")
    made = [
        generate(
            model,
            ids,
            40,
            temperature=temperature,
            generator=torch.Generator("cuda").manual_seed(1),
            cuda_graph=cuda_graph,
        )
        for cuda_graph in (True, False, None)
    ]
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


@pytest.mark.gpu
def test_what_a_graph_cannot_hold_is_refused(make_model: MakeModel) -> None:
    model = make_model().to("cuda")
    ids = torch.randint(0, 29, (2, 30), device="cuda")
    with pytest.raises(ValueError, match=r"cuda_graph=True cannot serve: .* float16 or bfloat16, got torch.float64"):
        generate(model, ids, 3, cuda_graph=True)
    model = model.to(torch.bfloat16)
    hook = model.blocks[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"blocks\.1 has hooks"):
        generate(model, ids, 3, cuda_graph=True)
    hook.remove()
    assert generate(model, ids, 3, cuda_graph=True).shape == (2, 33)


def test_without_a_gpu_a_graph_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="cuda_graph must be False or None without a CUDA device"):
        generate(make_model(), torch.zeros(1, 3, dtype=torch.int64), 2, cuda_graph=True)


@torch.no_grad()
def test_the_kernels_name_what_they_cannot_take(make_attention: MakeLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make_attention(), torch.randn(2, 9, 24, dtype=torch.float64)
    cache, counting = layer.new_cache(2), layer.new_cache(2, count_reads=True)
    token = x[:, :1]
    assert layer.why_not_stepped(x, cache) == "9 tokens at once"
    assert layer.why_not_stepped(token, cache) == "the cache holds no token of this kind yet"
    layer(x, cache)
    layer(x, counting)
    assert layer.why_not_stepped(token, cache) == why_not_triton(token.device, token.dtype, 6)
    assert layer.why_not_stepped(token, counting) == "plain torch alone counts reads"
    layer.impl = "vectorized"
    assert layer.why_not_stepped(token, cache) == "impl='vectorized' is asked for by name"
    monkeypatch.setattr(step_module, "_why_not_served", lambda *_: None)
    assert layer.why_not_stepped(token, cache) is None
    hook = layer.gate.register_forward_hook(lambda *_: None)
    assert str(layer.why_not_stepped(token, cache)).startswith("gate is more than a Gate")
    hook.remove()
    with torch.enable_grad():
        assert layer.why_not_stepped(token, cache) == "the kernels of decoding serve inference, uncompiled"


def average(x: Tensor) -> Tensor:
    return compress(x, phi_avg, GEOMETRY)


def drawn(num: int) -> Tokens:
    return Tokens(*(torch.randn(2, num, 3, size) for size in (4, 6) * 3))


def take(cache: NSACache, tokens: Tokens) -> None:
    """Write one token as the kernels do."""
    memory, position = cache.step_memory(3, 3, 10_000.0), cache.length
    assert memory.count.tolist()[0] == position
    for x, whole in ((tokens.k_sel, memory.k_sel), (tokens.v_sel, memory.v_sel)):
        whole[:, :, position] = x[:, 0]
    for x, ring in (
        (tokens.k_win, memory.k_win),
        (tokens.v_win, memory.v_win),
        (tokens.k_cmp, memory.k_new),
        (tokens.v_cmp, memory.v_new),
    ):
        ring[:, :, position % ring.shape[2]] = x[:, 0]
    number = GEOMETRY.num_compressed(position + 1)
    if number > GEOMETRY.num_compressed(position):
        for ring, compressed in ((memory.k_new, memory.k_cmp), (memory.v_new, memory.v_cmp)):
            compressed[:, :, number - 1] = ring.mean(2)
    memory.count[:1].fill_(position + 1)
    cache.stepped()


@torch.no_grad()
@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 12, 40])
@pytest.mark.parametrize("prompt", [1, 3, 4, 7, 30])
def test_a_cache_takes_back_what_the_kernels_wrote(prompt: int, num_steps: int) -> None:
    tokens, cache, plain = drawn(prompt + num_steps + 6), NSACache(GEOMETRY, 2, 8), NSACache(GEOMETRY, 2)

    def part(start: int, end: int) -> Tokens:
        return Tokens(*(x[:, start:end] for x in tokens))

    for each in (cache, plain):
        each.append(part(0, prompt), average, average)
    for position in range(prompt, prompt + num_steps):
        take(cache, part(position, position + 1))
        cache.fill_unwritten(torch.nan)
        plain.append(part(position, position + 1), average, average)
    assert cache.is_stepping
    assert cache.num_bytes() <= 2 * plain.num_bytes()
    rest = part(prompt + num_steps, prompt + num_steps + 6)
    handed = [each.append(rest, average, average) for each in (cache, plain)]
    assert not cache.is_stepping
    for one, other in zip(*handed, strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_a_cache_goes_back_to_where_the_kernels_stood() -> None:
    tokens, cache = drawn(40), NSACache(GEOMETRY, 2)
    parts = [Tokens(*(x[:, index : index + 1] for x in tokens)) for index in range(40)]
    cache.append(Tokens(*(x[:, :9] for x in tokens)), average, average)
    before = cache.mark()
    for index in (9, 10, 11):
        take(cache, parts[index])
    memory, mark = cache.step_memory(3, 3, 10_000.0), cache.mark()
    take(cache, parts[12])
    cache.go_back(mark)
    assert (cache.length, memory.count.tolist()[0]) == (12, 12)
    cache.append(Tokens(*(x[:, 12:30] for x in tokens)), average, average)
    cache.go_back(mark)
    assert cache.step_memory(3, 3, 10_000.0) is memory
    take(cache, parts[12])
    handed = cache.append(parts[13], average, average)
    assert torch.equal(handed.k_sel, tokens.k_sel[:, :14])
    assert torch.equal(handed.k_win, tokens.k_win[:, 9:14])
    torch.testing.assert_close(handed.k_cmp, average(tokens.k_cmp[:, :14]))
    cache.go_back(before)
    assert not cache.is_stepping
    handed = cache.append(parts[9], average, average)
    assert torch.equal(handed.k_sel, tokens.k_sel[:, :10])
    assert torch.equal(handed.k_win, tokens.k_win[:, 5:10])


@torch.no_grad()
def test_a_decoding_layer_that_runs_out_of_memory_leaves_the_cache_as_it_was() -> None:
    cache = NSACache(GEOMETRY, 2)
    tokens = drawn(20)
    cache.append(Tokens(*(x[:, :9] for x in tokens)), average, average)
    known = cache.num_bytes()
    with (
        patch.object(torch, "arange", side_effect=torch.OutOfMemoryError("CUDA out of memory")),
        pytest.raises(torch.OutOfMemoryError),
    ):
        cache.step_memory(3, 3, 10_000.0)
    assert (cache.length, cache.num_bytes(), cache.is_stepping) == (9, known, False)
