"""What fast paths get wrong at the edges: far logits, hidden infinities, ties, cut tiles, second derivatives."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa.ops import banded, tiles
from nsa.ops.api import compress_tokens, nsa_attention
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import vectorized as slide_vectorized
from nsa_doctor.probes.tensors.tolerance import largest

from .cases import Case, inputs

SMALL = Geometry(l=8, d=4, l_sel=16, n_sel=4, w=20)
BRANCHES = ("compressed", "selected", "sliding", "out")
FAST = ("vectorized", "fused")


def small_inputs(num_tokens: int, rows: int = 2, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    tensors = inputs(Case(num_tokens, 2, (16, 16), dtype, SMALL))
    return {name: torch.cat([x, -x])[:rows].detach().requires_grad_() for name, x in tensors.items()}


def assert_equals_the_oracle(tensors: dict[str, Tensor], impl: str, largest_logit: float = 10.0, **given: int) -> None:
    """A logit is rounded in proportion to its size, and a weight's relative error is its logit's absolute one."""
    bound = 16 * torch.finfo(torch.float64).eps * largest_logit
    leaves = list(tensors.values())
    truth = nsa_attention(**tensors, geometry=SMALL, impl="reference")
    result = nsa_attention(**tensors, geometry=SMALL, slots=truth.slots, impl=impl, **given)
    for branch in BRANCHES:
        assert float((getattr(result, branch) - getattr(truth, branch)).detach().abs().max()) <= bound, branch
    wanted, got = (torch.autograd.grad(output.out.square().sum(), leaves) for output in (truth, result))
    for name, a, b in zip(tensors, got, wanted, strict=True):
        assert float((a - b).abs().max()) <= bound * max(largest(grad) for grad in wanted), name


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("logit", [-1e4, 1e4], ids=["far-below-zero", "far-above-zero"])
def test_far_logits_give_the_oracles_results(impl: str, logit: float) -> None:
    tensors = {name: x.detach().clone() for name, x in small_inputs(50).items()}
    for name in ("q", "k_cmp", "k_sel", "k_win"):
        tensors[name][..., 0] = 200.0 if name == "q" else logit / 50  # 200 · logit / 50 / √16 = logit
    assert_equals_the_oracle({name: x.requires_grad_() for name, x in tensors.items()}, impl, abs(logit))


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("budget", [1, 1 << 9, 1 << 12])
def test_where_tiles_are_cut_changes_nothing(impl: str, budget: int) -> None:
    assert_equals_the_oracle(small_inputs(100, rows=3), impl, num_tile_elements=budget)


@pytest.mark.parametrize("impl", FAST)
def test_as_many_scores_are_computed_at_once_as_are_asked_for(monkeypatch: pytest.MonkeyPatch, impl: str) -> None:
    sizes: list[int] = []

    def noting(scores: Tensor, *arguments: Any) -> Any:
        sizes.append(scores.numel())
        return tiles.attend(scores, *arguments)

    monkeypatch.setattr(banded, "attend", noting)
    tensors = small_inputs(100)
    nsa_attention(**tensors, geometry=SMALL, impl=impl)
    largest_by_itself = max(sizes)
    sizes.clear()
    nsa_attention(**tensors, geometry=SMALL, impl=impl, num_tile_elements=1 << 9)
    assert max(sizes) < largest_by_itself


@pytest.mark.parametrize(
    ("impl", "number", "message"),
    [
        ("reference", 8, "is for plain torch, .* by reference"),
        ("auto", 0, "at least 1, got 0"),
    ],
)
def test_a_number_of_scores_at_once_that_cannot_be_is_refused(impl: str, number: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"num_tile_elements .*{message}"):
        nsa_attention(**small_inputs(20), geometry=SMALL, impl=impl, num_tile_elements=number)


@pytest.mark.parametrize("impl", FAST)
def test_a_hidden_score_that_overflows_changes_no_earlier_output(impl: str) -> None:
    tensors = {name: x.detach().clone() for name, x in small_inputs(96, dtype=torch.float32).items()}
    slots = nsa_attention(**tensors, geometry=SMALL, impl=impl).slots
    for held in (slots, None):  # in a block that some choose, and in one that all see
        hidden = 60 if held is not None else SMALL.n_sel * SMALL.l_sel - 2
        before = nsa_attention(**tensors, geometry=SMALL, slots=held, impl=impl)
        given = {name: x.clone() for name, x in tensors.items()}
        for name in ("k_sel", "k_win"):
            given[name][:, hidden] = 3e38
        after = nsa_attention(**given, geometry=SMALL, slots=held, impl=impl)
        for branch in BRANCHES:
            assert torch.equal(getattr(before, branch)[:, :hidden], getattr(after, branch)[:, :hidden]), branch


@pytest.mark.parametrize("magnitude", [1.0, 1e4, 1e8])
def test_equal_logits_of_any_size_give_equal_weights_backward(magnitude: float) -> None:
    geometry = Geometry(l=8, d=4, l_sel=16, n_sel=4, w=16)
    q = torch.full((1, 40, 1, 4), magnitude)
    k, v = torch.ones(1, 40, 1, 4), torch.randn(1, 40, 1, 4, requires_grad=True)
    slots = select_vectorized.choose_slots(torch.zeros(1, 40, 1, 3), geometry, 0)
    for out in (
        slide_vectorized.sliding_attention(q, k, v, geometry),
        select_vectorized.selected_attention(q, k, v, slots, geometry),
    ):
        (grad,) = torch.autograd.grad(out.sum(), v)
        assert abs(float(grad.sum()) - out.numel()) <= 1e-4 * out.numel()  # weights of each query sum to one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("value", [1e3, 1e38, torch.inf, torch.nan, -0.0], ids=str)
def test_no_importance_outranks_a_forced_block(dtype: torch.dtype, value: float) -> None:
    importance = torch.full((1, 128, 1, 8), value, dtype=dtype)
    slots = select_vectorized.choose_slots(importance, SMALL, 0)
    assert {0, 6, 7} <= set(slots[0, 127, 0].tolist())
    assert EMPTY_SLOT not in slots[0, 127, 0].tolist()


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("changes", [{"w": 2**31 - 1}, {"l_sel": 1 << 24}], ids=["window", "block"])
def test_a_window_or_block_far_longer_than_the_sequence_takes_no_more(impl: str, changes: dict[str, int]) -> None:
    tensors, results = small_inputs(40), []
    for covering in ({"w": 40, "l_sel": 48}, {"w": 40, "l_sel": 48} | changes):
        geometry = replace(SMALL, **covering)
        output = nsa_attention(**tensors, geometry=geometry, impl=impl)
        results.append((*output, *torch.autograd.grad(output.out.square().sum(), list(tensors.values()))))
    assert all(float((a - b).detach().abs().max()) <= 1e-13 for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("impl", [*FAST, "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_rounds_no_score(impl: str, dtype: torch.dtype) -> None:
    tensors = small_inputs(100, dtype=dtype)
    leaves = [x.data.mul_(8).requires_grad_() for x in tensors.values()]  # far logits: rounded, they change weights
    given = dict(zip(tensors, leaves, strict=True))
    results = []
    for is_on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            output = nsa_attention(**given, geometry=SMALL, impl=impl)
        results.append((*output, *torch.autograd.grad(output.out.double().square().sum(), leaves)))
    assert all(torch.equal(off, on) for off, on in zip(*results, strict=True))


def test_a_backward_pass_under_autocast_rounds_no_score() -> None:
    tensors = small_inputs(100, dtype=torch.float32)
    loss = nsa_attention(**tensors, geometry=SMALL, impl="vectorized").out.square().sum()
    expected = torch.autograd.grad(loss, list(tensors.values()), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(loss, list(tensors.values()))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("impl", FAST)
def test_a_slot_of_the_future_is_read_by_nobody(impl: str) -> None:
    tensors = small_inputs(100)
    slots = torch.tensor([0, 6, 3, EMPTY_SLOT]).expand(2, 100, 2, 4)
    result = nsa_attention(**tensors, geometry=SMALL, slots=slots, impl=impl, num_tile_elements=1 << 9).selected
    expected = select_reference.selected_attention(tensors["q"], tensors["k_sel"], tensors["v_sel"], slots, SMALL)
    assert float((result - expected).detach().abs().max()) <= 1e-13


@pytest.mark.parametrize("impl", FAST)
def test_second_derivatives_are_refused(impl: str) -> None:
    tensors = small_inputs(40)
    output = nsa_attention(**tensors, geometry=SMALL, impl=impl)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(output.out.square().sum(), tensors["k_sel"], create_graph=True)


def test_slots_past_a_packed_sequence_are_refused() -> None:
    tensors = {name: x for name, x in small_inputs(40, rows=1).items() if "cmp" not in name}
    offsets = torch.tensor([0, 20, 40], dtype=torch.int32)
    compressed = {f"{x}_cmp": compress_tokens(tensors[f"{x}_sel"], SMALL, cu_seqlens=offsets) for x in ("k", "v")}
    slots = torch.full((1, 40, 2, 4), EMPTY_SLOT)
    slots[..., 0] = 2
    with pytest.raises(ValueError, match=r"in \[0, 2\)"):
        nsa_attention(**tensors, **compressed, geometry=SMALL, cu_seqlens=offsets, slots=slots)


@pytest.mark.parametrize(
    ("phi", "shapes"), [("avg", [(1,)]), ("conv", [(16, 5), (16, 16), (16,)]), ("mlp", [(8, 16), (3, 5)])]
)
def test_weights_that_are_not_phis_are_refused(phi: str, shapes: list[tuple[int, ...]]) -> None:
    weights = tuple(torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=f"weights of phi='{phi}' must have shapes"):
        compress_tokens(torch.zeros(1, 40, 2, 16), SMALL, phi, weights)
