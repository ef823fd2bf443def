"""What the oracle promises beyond its numbers: nothing from the future, exact zeros, ties, dtypes, refusals."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa.ops.compress.reference import compress, compressed_attention, phi_avg, phi_conv, phi_mlp
from nsa.ops.gate.reference import mix
from nsa.ops.geometry import Geometry
from nsa.ops.score.reference import block_importance
from nsa.ops.select.reference import choose_slots, selected_attention
from nsa.ops.slide.reference import sliding_attention
from tests.nsa.gate_equation import gate_weights

SMALL = Geometry(l=4, d=2, l_sel=8, n_sel=4, w=5)
NUM_TOKENS = 45


class Branches(NamedTuple):
    compressed: Tensor
    probabilities: Tensor
    importance: Tensor
    slots: Tensor
    selected: Tensor
    sliding: Tensor


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(
    num_tokens: int = NUM_TOKENS, heads: int = 4, groups: int = 2, rows: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, S, H, 4], k [B, S, G, 4], v [B, S, G, 2] that want gradients."""
    sizes = [(heads, 4), (groups, 4), (groups, 2)]
    return tuple(random(rows, num_tokens, *size, seed=i).requires_grad_() for i, size in enumerate(sizes))


def all_branches(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry = SMALL) -> Branches:
    """Every function of the oracle in turn, all branches on the same keys and values."""
    compressed, probabilities = compressed_attention(
        q, compress(k, phi_avg, geometry), compress(v, phi_avg, geometry), geometry, 0
    )
    importance = block_importance(probabilities, k.shape[2], geometry.num_blocks(k.shape[1]), geometry)
    slots = choose_slots(importance, geometry, 0)
    selected = selected_attention(q, k, v, slots, geometry)
    return Branches(compressed, probabilities, importance, slots, selected, sliding_attention(q, k, v, geometry))


def grads(out: Tensor, *wanted: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a random projection of `out`, with anomaly mode on: a NaN on the way raises."""
    with torch.autograd.set_detect_anomaly(True):
        return torch.autograd.grad(out, wanted, random(*out.shape, seed=9))


def is_zero(x: Tensor) -> bool:
    return bool((x == 0).all())


@pytest.mark.parametrize("position", [0, 2, 3, 7, 8, 20, 31, 32, NUM_TOKENS - 2], ids="t{}".format)
def test_nan_in_every_future_token_changes_nothing(position: int) -> None:
    clean = [x.detach() for x in inputs()]
    poisoned = [x.clone() for x in clean]
    for x in poisoned:
        x[:, position + 1 :] = torch.nan
    for name, before, after in zip(Branches._fields, all_branches(*clean), all_branches(*poisoned), strict=True):
        before, after = before[:, : position + 1], after[:, : position + 1]
        if name == "probabilities":  # of the blocks that are complete; the others do not exist yet
            visible = SMALL.num_compressed(position + 1)
            assert is_zero(after[..., visible:])
        assert torch.equal(before, after), name


@pytest.mark.parametrize("branch", ["compressed", "selected", "sliding"])
@pytest.mark.parametrize("position", [3, 4, 8, 31, 32], ids="t{}".format)
def test_no_gradient_reaches_another_query_or_a_later_token(branch: str, position: int) -> None:
    q, k, v = inputs()
    out = getattr(all_branches(q, k, v), branch)[:, position]
    for_q, for_k, for_v = grads(out, q, k, v)
    assert is_zero(for_k[:, position + 1 :])
    assert is_zero(for_v[:, position + 1 :])
    assert not is_zero(for_v[:, : position + 1])
    assert is_zero(for_q[:, :position])
    assert is_zero(for_q[:, position + 1 :])


@pytest.mark.parametrize("num_tokens", [1, 2, 3], ids="S{}".format)
@pytest.mark.parametrize("phi", ["avg", "mlp", "conv"])
def test_a_sequence_shorter_than_a_block_has_a_compressed_branch_of_exact_zeros(num_tokens: int, phi: str) -> None:
    q, k, v = inputs(num_tokens)
    sizes = {"avg": (), "mlp": ((4, 4), (3, 16), (3,), (4, 3), (4,)), "conv": ((4, 4), (4, 4), (4,))}[phi]
    weights = [random(*size).requires_grad_() for size in sizes]
    function: Callable[..., Tensor] = {"avg": phi_avg, "mlp": phi_mlp, "conv": phi_conv}[phi]
    k_cmp = compress(k, lambda block: function(block, *weights), SMALL)
    out, probabilities = compressed_attention(q, k_cmp, compress(v, phi_avg, SMALL), SMALL, 0)
    assert k_cmp.shape == (1, 0, 2, 4)
    assert probabilities.shape == (1, num_tokens, 4, 0)
    assert is_zero(out)
    assert all(is_zero(grad) for grad in grads(out, q, k, v, *weights))


def test_queries_before_the_first_block_ends_get_exact_zeros_and_give_no_gradient() -> None:
    q, k, v = inputs()
    out = all_branches(q, k, v).compressed
    early = SMALL.l - 1
    assert is_zero(out[:, :early])
    assert not is_zero(out[:, early])
    assert is_zero(grads(out, q)[0][:, :early])
    assert all(is_zero(grad) for grad in grads(all_branches(q, k, v).compressed[:, :early], k, v))


def test_queries_before_the_first_block_ends_find_every_block_without_importance() -> None:
    branches = all_branches(*inputs())
    assert is_zero(branches.importance[:, : SMALL.l - 1])
    assert branches.slots[0, 0, 0].tolist() == [0, -1, -1, -1]


@pytest.mark.parametrize("slot", [-1, NUM_TOKENS // SMALL.l_sel], ids=["empty", "not-yet-begun"])
def test_a_query_with_nothing_to_read_gets_exact_zeros_forward_and_backward(slot: int) -> None:
    q, k, v = inputs()
    slots = all_branches(q, k, v).slots
    early = SMALL.l_sel * (NUM_TOKENS // SMALL.l_sel)
    slots[:, :early] = slot
    out = selected_attention(q, k, v, slots, SMALL)
    assert is_zero(out[:, :early])
    assert not is_zero(out[:, early])
    assert is_zero(grads(out, q)[0][:, :early])
    assert all(is_zero(grad) for grad in grads(selected_attention(q, k, v, slots, SMALL)[:, :early], k, v))


def test_slots_may_repeat_and_come_in_any_order() -> None:
    q, k, v = inputs()
    slots = all_branches(q, k, v).slots
    twice = torch.cat((slots, slots), dim=-1).flip(-1)
    assert torch.equal(selected_attention(q, k, v, twice, SMALL), selected_attention(q, k, v, slots, SMALL))


@pytest.mark.parametrize(
    ("importance", "expected"),
    [
        ([0, 0, 0, 0, 0, 0, 0], [0, 1, 5, 6]),
        ([9, 1, 2, 2, 2, 9, 9], [0, 2, 5, 6]),
        ([0, 0, 0, 0, 1, 0, 0], [0, 4, 5, 6]),
        ([0, 2, 0, 2, 0, 0, 0], [0, 1, 5, 6]),
        ([0, -1, -1, -2, -1, 0, 0], [0, 1, 5, 6]),
    ],
    ids=["all-tied", "three-tied", "no-tie", "two-tied", "below-zero"],
)
def test_ties_go_to_the_lower_index(importance: list[float], expected: list[int]) -> None:
    scores = torch.tensor(importance, dtype=torch.float64).reshape(1, 1, 1, 7)
    assert choose_slots(scores, SMALL, 6 * SMALL.l_sel).flatten().tolist() == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, [0, -1, -1, -1]),
        (7, [0, -1, -1, -1]),
        (8, [0, 1, -1, -1]),
        (16, [0, 1, 2, -1]),
        (24, [0, 1, 2, 3]),
        (47, [0, 3, 4, 5]),
    ],
    ids=lambda value: f"t{value}" if isinstance(value, int) else "",
)
def test_forced_blocks_count_once_and_blocks_not_yet_begun_are_never_chosen(position: int, expected: list[int]) -> None:
    importance = torch.tensor([0, 0, 0, 0.5, 0, 0, 9, 9], dtype=torch.float64).reshape(1, 1, 1, 8)
    assert choose_slots(importance, SMALL, position).flatten().tolist() == expected


def test_heads_of_a_group_choose_as_one_and_groups_choose_apart() -> None:
    q, k, v = (x.detach() for x in inputs())
    slots = all_branches(q, k, v).slots
    other = q.clone()
    other[:, :, 2:] = -3 * other[:, :, 2:]
    changed = all_branches(other, k, v).slots
    assert slots.shape == (1, NUM_TOKENS, 2, SMALL.n_sel)
    assert torch.equal(changed[:, :, 0], slots[:, :, 0])
    assert not torch.equal(changed[:, :, 1], slots[:, :, 1])
    assert torch.equal(all_branches(q[:, :, [1, 0, 3, 2]], k, v).slots, slots)


def test_selection_is_not_differentiated_through() -> None:
    branches = all_branches(*inputs())
    assert branches.importance.requires_grad
    assert not branches.slots.requires_grad
    assert branches.slots.dtype == torch.int64


@pytest.mark.parametrize(
    ("geometry", "num_tokens"),
    [
        *((Geometry(), s) for s in (1, 2, 31, 63, 64, 65, 130)),
        (Geometry(l=2, d=1, l_sel=4, n_sel=5, w=20), 20),
        (Geometry(l=4, d=4, l_sel=4, n_sel=3, w=10), 10),
    ],
    ids=lambda value: f"S{value}" if isinstance(value, int) else f"n{value.n_sel}x{value.l_sel}-w{value.w}",
)
@pytest.mark.parametrize("branch", ["selected", "sliding"])
def test_dense_causal_attention_returns_when_everything_is_covered(
    geometry: Geometry, num_tokens: int, branch: str
) -> None:
    q, k, v = inputs(num_tokens, heads=6, groups=2)
    out = getattr(all_branches(q, k, v, geometry), branch)
    dense = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    for result, expected in zip((out, *grads(out, q, k, v)), (dense, *grads(dense, q, k, v)), strict=True):
        assert bool(((result - expected).abs() <= 1e-12).all())


@pytest.mark.parametrize("num_new", [1, 3, 17], ids="newest{}".format)
def test_the_newest_queries_alone_get_what_they_get_among_all(num_new: int) -> None:
    q, k, v = (x.detach() for x in inputs())
    whole, first, new = all_branches(q, k, v), NUM_TOKENS - num_new, q[:, -num_new:]
    k_cmp, v_cmp = compress(k, phi_avg, SMALL), compress(v, phi_avg, SMALL)
    compressed, probabilities = compressed_attention(new, k_cmp, v_cmp, SMALL, first)
    importance = block_importance(probabilities, 2, SMALL.num_blocks(NUM_TOKENS), SMALL)
    slots = choose_slots(importance, SMALL, first)
    selected, sliding = selected_attention(new, k, v, slots, SMALL), sliding_attention(new, k, v, SMALL)
    alone = Branches(compressed, probabilities, importance, slots, selected, sliding)
    for name, few, many in zip(Branches._fields, alone, whole, strict=True):
        assert torch.equal(few, many[:, -num_new:]), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_each_dtype_is_kept_and_half_precision_is_float32_rounded_once(dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in inputs())
    wide_dtype = torch.promote_types(dtype, torch.float32)
    slots = all_branches(q, k, v).slots
    k_cmp, v_cmp = compress(k, phi_avg, SMALL), compress(v, phi_avg, SMALL)

    def outputs(convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
        compressed, probabilities = compressed_attention(convert(q), convert(k_cmp), convert(v_cmp), SMALL, 0)
        assert probabilities.dtype == wide_dtype
        assert block_importance(probabilities, 2, 6, SMALL).dtype == wide_dtype
        selected = selected_attention(convert(q), convert(k), convert(v), slots, SMALL)
        sliding = sliding_attention(convert(q), convert(k), convert(v), SMALL)
        return [compressed, selected, sliding, compress(convert(k), phi_avg, SMALL)]

    for narrow, wide in zip(outputs(lambda x: x), outputs(lambda x: x.to(wide_dtype)), strict=True):
        assert narrow.dtype == dtype
        assert torch.equal(narrow, wide.to(dtype))


@pytest.mark.parametrize("branch", ["compressed", "selected", "sliding"])
def test_each_branch_agrees_with_its_numerical_gradient(branch: str) -> None:
    q, k, v = inputs(19, heads=2, groups=1)
    slots = all_branches(q, k, v).slots
    functions: dict[str, Callable[..., Tensor]] = {
        "compressed": lambda q, k, v: all_branches(q, k, v).compressed,
        "selected": lambda q, k, v: selected_attention(q, k, v, slots, SMALL),
        "sliding": lambda q, k, v: sliding_attention(q, k, v, SMALL),
    }
    assert torch.autograd.gradcheck(functions[branch], (q, k, v), fast_mode=True)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 30.0], ids="temperature{}".format)
def test_softmax_gates_sum_to_one(temperature: float) -> None:
    weights = [random(*size) for size in ((5, 4), (5,), (3, 5), (3,))]
    gates = gate_weights(random(2, 7, 3, 4), *weights, "softmax", temperature)
    assert gates.shape == (2, 7, 3, 3)
    assert bool((gates > 0).all())
    assert bool(((gates.sum(-1) - 1).abs() <= 1e-15).all())


@pytest.mark.parametrize("which", [0, 1, 2], ids=["compressed", "selected", "sliding"])
def test_a_gate_of_one_passes_its_branch_alone(which: int) -> None:
    branches = [random(1, 3, 4, 2, seed=i) for i in range(3)]
    gates = torch.nn.functional.one_hot(torch.full((1, 3, 2), which), 3).double()
    assert torch.equal(mix(*branches, gates), branches[which])


def test_too_few_compressed_blocks_are_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="k_cmp must hold the 21 blocks the last query sees, got 20"):
        compressed_attention(q, compress(k, phi_avg, SMALL)[:, :20], compress(v, phi_avg, SMALL)[:, :20], SMALL, 0)


def test_importance_of_too_few_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="importance must score the 6 blocks the last query may choose, got 5"):
        choose_slots(random(1, 1, 1, 5), SMALL, 44)


@pytest.mark.parametrize("slot", [-2, 6, 100])
def test_a_slot_that_is_no_block_is_refused(slot: int) -> None:
    q, k, v = inputs()
    slots = torch.full((1, NUM_TOKENS, 2, 3), slot)
    with pytest.raises(ValueError, match=rf"slots must be -1 or in \[0, 6\), got {slot}"):
        selected_attention(q, k, v, slots, SMALL)
