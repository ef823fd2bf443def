"""The whole layer against the oracle's equations, written out here by hand."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from nsa import NSAttention
from nsa.nn import BranchOutputs
from nsa.ops.compress import reference as compress
from nsa.ops.gate import reference as gate
from nsa.ops.score import reference as score
from nsa.ops.select import reference as select
from nsa.ops.slide import reference as slide
from tests.nsa.gate_equation import gate_weights

VARIANTS: dict[str, dict[str, object]] = {
    "avg-softmax": {"phi": "avg", "gate_temperature": 0.7},
    "mlp-sigmoid": {"phi": "mlp", "gate": "sigmoid"},
    "conv-shared": {"phi": "conv", "shared_kv": True, "rope_theta": 77.0},
    "one-group": {"n_kv_groups": 1, "d_v": 3},
    "one-head-per-group": {"n_kv_groups": 4, "d_v": 9, "l": 8, "d": 4, "w": 1},
}
Make = Callable[..., NSAttention]


@pytest.fixture(params=list(VARIANTS))
def attention(request: pytest.FixtureRequest, make_attention: Make) -> NSAttention:
    return make_attention(**VARIANTS[request.param])


def test_every_branch_equals_the_oracle(attention: NSAttention, assert_close: Callable[..., None]) -> None:
    x = torch.randn(2, 45, 24, dtype=torch.float64)
    expected, got = oracle_branches(attention, x), attention.branches(x)
    assert torch.equal(got.slots, expected.slots)
    for name in ("compressed", "selected", "sliding", "gates", "gated"):
        assert_close(getattr(got, name), getattr(expected, name))


def test_forward_is_the_output_projection_of_the_gated_mix(attention: NSAttention) -> None:
    x = torch.randn(2, 21, 24, dtype=torch.float64)
    expected = attention.branches(x).gated.flatten(2) @ attention.out_proj.weight.T
    torch.testing.assert_close(attention(x), expected, rtol=1e-13, atol=1e-14)


def test_every_implementation_gives_the_same_layer(make_attention: Make, assert_close: Callable[..., None]) -> None:
    layers = {impl: make_attention(impl) for impl in ("vectorized", "reference", "fused")}
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    for layer in layers.values():
        layer.load_state_dict(layers["vectorized"].state_dict())
    assert_close(layers["reference"](x), layers["vectorized"](x))
    assert_close(layers["fused"](x), layers["vectorized"](x))


def test_an_implementation_that_cannot_serve_is_refused_by_name(make_attention: Make) -> None:
    layer = make_attention("flash")  # float64 on a CPU: flash-attn serves neither
    with pytest.raises(ValueError, match="impl='flash' cannot serve"):
        layer(torch.randn(1, 5, 24, dtype=torch.float64))


def test_few_rows_and_many_project_alike(make_attention: Make, assert_close: Callable[..., None]) -> None:
    projection = make_attention().qkv
    x = torch.randn(2, 40, 24, dtype=torch.float64)  # 80 rows; one token at a time stays below dim / 4
    many = projection(x)
    few = [projection(token) for token in x.split(1, dim=1)]
    for name in ("q", "keys", "values"):
        assert_close(torch.cat([getattr(part, name) for part in few], dim=1), getattr(many, name))


def test_branches_have_parameters_of_their_own(make_attention: Make) -> None:
    separate, shared = (dict(make_attention(shared_kv=flag).qkv.named_parameters()) for flag in (False, True))
    assert set(separate) == {"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win"}
    assert set(shared) == {"q", "k", "v"}


@pytest.mark.parametrize("branch", [0, 1, 2], ids=["compressed", "selected", "sliding"])
def test_a_branch_learns_through_its_own_keys_and_values_alone(make_attention: Make, branch: int) -> None:
    layer = make_attention()
    layer.branches(torch.randn(1, 40, 24, dtype=torch.float64))[branch].square().sum().backward()
    for index, name in enumerate(("cmp", "sel", "win")):
        for weight in (getattr(layer.qkv, f"k_{name}"), getattr(layer.qkv, f"v_{name}")):
            assert (weight.grad is not None and bool(weight.grad.any())) == (index == branch), name


def test_selection_is_the_same_for_all_heads_of_a_group_and_can_be_held(make_attention: Make) -> None:
    layer = make_attention()
    x = torch.randn(1, 60, 24, dtype=torch.float64)
    chosen = layer.branches(x)
    assert chosen.slots.shape == (1, 60, 2, 4)
    held = layer.branches(x, slots=chosen.slots)
    torch.testing.assert_close(held.gated, chosen.gated, rtol=1e-12, atol=1e-12)
    other = layer.branches(x.flip(1)).slots
    assert not torch.equal(layer.branches(x, slots=other).selected, chosen.selected)


def test_dense_attention_is_recovered_when_everything_is_covered(
    make_attention: Make, assert_close: Callable[..., None]
) -> None:
    layer = make_attention(w=24)
    x = torch.randn(2, 24, 24, dtype=torch.float64)
    q, (_, k_sel, k_win), (_, v_sel, v_win) = rotated_projections(layer, x)
    got = layer.branches(x)
    for branch, k, v in ((got.selected, k_sel, v_sel), (got.sliding, k_win, v_win)):
        heads = (part.transpose(1, 2) for part in (q, k, v))
        dense = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        assert_close(branch, dense.transpose(1, 2))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 4, 23), "x must be"), ((1, 0, 24), "at least 1"), ((0, 4, 24), "at least 1")],
    ids=["width", "no-token", "no-row"],
)
def test_wrong_input_is_refused_in_one_sentence(make_attention: Make, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_attention()(torch.zeros(shape, dtype=torch.float64))


def test_another_dtype_is_refused_outside_autocast(make_attention: Make) -> None:
    with pytest.raises(ValueError, match=r"x must have the dtype of the weights, torch\.float64, .*got torch\.float32"):
        make_attention()(torch.zeros(1, 4, 24))


def test_unknown_implementation_is_refused_on_construction(make_attention: Make) -> None:
    with pytest.raises((ValueError, TypeCheckError), match="impl"):  # by the layer, or by its annotation if checked
        make_attention("vectorised")


def rotated_projections(layer: NSAttention, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Queries, and the keys and values of the three branches, rotated pair by pair with plain sines."""
    config, weight = layer.config, layer.qkv

    def heads(name: str, size: int) -> Tensor:
        return (x @ getattr(weight, name).T).unflatten(-1, (-1, size))

    branches = [""] * 3 if config.shared_kv else ["_cmp", "_sel", "_win"]
    keys = [plain_rotation(heads(f"k{branch}", config.d_k), config.rope_theta) for branch in branches]
    values = [heads(f"v{branch}", config.d_v) for branch in branches]
    return plain_rotation(heads("q", config.d_k), config.rope_theta), keys, values


def plain_rotation(x: Tensor, theta: float) -> Tensor:
    out = x.clone()
    for position in range(x.shape[1]):
        for j in range(x.shape[-1] // 2):
            angle = position * theta ** (-2 * j / x.shape[-1])
            a, b = x[:, position, :, 2 * j], x[:, position, :, 2 * j + 1]
            out[:, position, :, 2 * j] = a * math.cos(angle) - b * math.sin(angle)
            out[:, position, :, 2 * j + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


@torch.no_grad()
def oracle_branches(layer: NSAttention, x: Tensor) -> BranchOutputs:
    config, geometry = layer.config, layer.geometry
    q, (k_cmp, k_sel, k_win), (v_cmp, v_sel, v_win) = rotated_projections(layer, x)
    phi = {"avg": compress.phi_avg, "mlp": compress.phi_mlp, "conv": compress.phi_conv}[config.phi]
    names = {"avg": (), "mlp": ("position", "w1", "b1", "w2", "b2"), "conv": ("kernel", "w", "b")}[config.phi]
    weights_k, weights_v = (
        [
            getattr(module, name) if getattr(module, name) is not None else torch.zeros(size, dtype=x.dtype)
            for name in names
        ]
        for module, size in ((layer.compress_k, config.d_k), (layer.compress_v, config.d_v))
    )
    k_cmp = compress.compress(k_cmp, lambda block: phi(block, *weights_k), geometry)
    v_cmp = compress.compress(v_cmp, lambda block: phi(block, *weights_v), geometry)
    compressed, probabilities = compress.compressed_attention(q, k_cmp, v_cmp, geometry, 0)
    importance = score.block_importance(probabilities, config.n_kv_groups, geometry.num_blocks(x.shape[1]), geometry)
    slots = select.choose_slots(importance, geometry, 0)
    selected = select.selected_attention(q, k_sel, v_sel, slots, geometry)
    sliding = slide.sliding_attention(q, k_win, v_win, geometry)
    unrotated = (x @ layer.qkv.q.T).unflatten(-1, (config.n_kv_groups, -1, config.d_k))
    fc1, fc2 = layer.gate.fc1, layer.gate.fc2
    weigh = partial(gate_weights, kind=config.gate, temperature=config.gate_temperature)
    gates = weigh(unrotated.mean(3), fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    mixed = gate.mix(compressed, selected, sliding, gates)
    return BranchOutputs(compressed, selected, sliding, mixed, gates, slots)
