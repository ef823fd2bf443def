"""The layer in every dtype and mode, after every round trip."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from nsa import ModelConfig, NSAttention, Transformer

Make = Callable[..., NSAttention]
MODES = {"avg": {}, "mlp": {"phi": "mlp"}, "conv": {"phi": "conv", "gate": "sigmoid"}}


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_lower_precision_stays_near_float64(make_attention: Make, dtype: torch.dtype, mode: str) -> None:
    low = make_attention(**MODES[mode]).to(dtype)
    exact = copy.deepcopy(low).double()
    x = torch.randn(2, 50, 24, dtype=dtype, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    expected = exact.branches(wide)
    got = low.branches(x, slots=expected.slots)
    got.gated.square().sum().backward()
    expected.gated.square().sum().backward()
    assert got.gated.dtype == low(x).dtype == dtype
    assert x.grad is not None
    assert wide.grad is not None
    for value, truth in ((got.gated, expected.gated), (x.grad, wide.grad)):
        error = (value.double() - truth).abs().max() / truth.abs().max()
        assert error <= 32 * torch.finfo(dtype).eps  # a dozen roundings in a row, projections of 24 terms among them


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_half_precision_out_and_full_precision_gradients(
    make_attention: Make, dtype: torch.dtype, mode: str
) -> None:
    layer = make_attention(**MODES[mode]).float()
    x = torch.randn(2, 50, 24, requires_grad=True)
    exact = layer.branches(x)
    with torch.autocast("cpu", dtype):
        got = layer.branches(x, slots=exact.slots)
        out = layer(x, slots=exact.slots)
    assert got.gated.dtype == out.dtype == dtype
    assert (got.gated - exact.gated).abs().max() <= 32 * torch.finfo(dtype).eps * exact.gated.abs().max()
    out.float().square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all(), name


def test_weights_of_one_half_precision_serve_autocast_to_the_other(make_model: Callable[..., Transformer]) -> None:
    model = make_model(phi="mlp").half()
    ids = torch.randint(0, 29, (2, 50))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_autocast_decodes(make_attention: Make, dtype: torch.dtype) -> None:
    layer = make_attention(n_sel=8).float()  # as many slots as blocks: rounding cannot change the choice
    x = torch.randn(2, 50, 24)
    with torch.autocast("cpu", dtype):
        cache = layer.new_cache(2)
        got = torch.cat([layer(part, cache) for part in x.split(7, dim=1)], dim=1)
        expected = layer(x)
    assert (got - expected).abs().max() <= 32 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_shortest_sequences_work_forward_and_backward(make_attention: Make, length: int, dtype: torch.dtype) -> None:
    layer = make_attention(phi="mlp").to(dtype)
    x = torch.randn(3, length, 24, dtype=dtype, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not layer.branches(x).compressed.any()


def test_an_output_projection_of_another_kind_is_no_business_of_the_input(make_attention: Make) -> None:
    layer = make_attention(dim=20).float()  # as wide as its heads together
    x = torch.randn(2, 30, 20)
    expected = layer.branches(x).gated.flatten(2)
    layer.out_proj = torch.nn.Identity()  # it has no weight, as a quantized one has none that is a tensor
    assert torch.equal(layer(x), expected)


def test_memory_layout_of_the_input_does_not_matter(make_attention: Make, assert_close: Callable[..., None]) -> None:
    layer = make_attention(n_kv_groups=1)  # the joined projection has an odd width here
    x = torch.randn(24, 2, 20, dtype=torch.float64).permute(1, 2, 0)[:, ::2]
    assert not x.is_contiguous()
    assert_close(layer(x).detach(), layer(x.contiguous()).detach())


def test_inference_mode_then_training_works(make_attention: Make) -> None:
    layer = make_attention()
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    with torch.inference_mode():
        expected = layer(x)
    out = layer(x)
    out.sum().backward()
    assert torch.equal(out.detach(), expected)


def test_forward_changes_neither_input_nor_parameters(make_attention: Make) -> None:
    layer = make_attention(phi="conv")
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    before, weights = x.clone(), copy.deepcopy(layer.state_dict())
    layer(x).sum().backward()
    assert torch.equal(x, before)
    assert all(torch.equal(weights[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "state-dict", "file"])
def test_model_survives_a_round_trip_bit_for_bit(make_model: Callable[..., Transformer], way: str) -> None:
    model = make_model(phi="mlp")
    ids = torch.randint(0, 29, (2, 33))
    expected = model(ids)
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        other = Transformer(model.config).double()
        state = model.state_dict()
        if way == "file":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        other.load_state_dict(state)
    assert torch.equal(other(ids), expected)
    assert other.embedding.weight is not model.embedding.weight


def test_copied_cache_continues_on_its_own(make_attention: Make) -> None:
    layer = make_attention()
    x = torch.randn(1, 40, 24, dtype=torch.float64)
    with torch.no_grad():
        cache = layer.new_cache(1)
        layer(x[:, :20], cache)
        fork = copy.deepcopy(cache)
        layer(-x[:, 20:], fork)
        got = layer(x[:, 20:], cache)
        again = layer.new_cache(1)
        layer(x[:, :20], again)
        assert torch.equal(got, layer(x[:, 20:], again))


def test_same_seed_gives_the_same_weights_and_another_does_not(make_config: Callable[..., ModelConfig]) -> None:
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(Transformer(make_config(phi="mlp")).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_model_can_be_built_without_memory_and_filled_later(make_model: Callable[..., Transformer]) -> None:
    model = make_model(phi="conv")
    with torch.device("meta"):
        empty = Transformer(model.config).double()
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.load_state_dict(model.state_dict(), assign=True)
    ids = torch.randint(0, 29, (1, 20))
    assert torch.equal(empty(ids), model(ids))


COMPILED = """
import torch
from nsa import NSAConfig, NSAttention

layer = NSAttention(NSAConfig(dim=24, n_heads=4, n_kv_groups=2, d_k=6, d_v=5, l=4, d=2, l_sel=8, n_sel=4, w=7))
x = torch.randn(2, 33, 24, requires_grad=True)
plain, compiled = (call(x) for call in (layer, torch.compile(layer, backend="eager")))
grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in (plain, compiled)]
print(torch.equal(plain, compiled), torch.equal(*grads))
"""


def test_a_compiled_layer_gives_the_same_results() -> None:
    # A process of its own, since the compiler cannot see through the tests' shape checks.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
