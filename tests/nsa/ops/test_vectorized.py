"""The vectorized path gives the oracle's results: every branch, the mix, and the gradient of every input."""

import pytest
import torch
from torch import Tensor

from nsa.ops.api import nsa_attention
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.score import reference as score_reference
from nsa.ops.score import vectorized as score_vectorized
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa_doctor.probes.tensors.tolerance import deviation, largest

from .cases import GEOMETRIES, Case, all_cases, dense, inputs, pairwise_cases

BRANCHES = ("compressed", "selected", "sliding", "out")
FULL = [pytest.param(case, id=str(case), marks=pytest.mark.full) for case in all_cases()]
# The longest take ten seconds each, most of it the oracle's: they are part of the full product alone.
PAIRWISE = [pytest.param(case, id=str(case)) for case in pairwise_cases() if case.num_tokens < 1000]


def gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed random projection of `out`."""
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return list(torch.autograd.grad((out * weight).sum(), leaves, materialize_grads=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [*PAIRWISE, *FULL])
def test_vectorized_equals_the_oracle(case: Case) -> None:
    tensors = inputs(case)
    exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    truth = nsa_attention(**exact, geometry=case.geometry, impl="reference")
    result = nsa_attention(**tensors, geometry=case.geometry, slots=truth.slots, impl="vectorized")
    plain = dense(tensors, truth.slots, case.geometry)

    num_terms = case.num_tokens * case.heads_per_group
    leaves = [list(named.values()) for named in (tensors, tensors, exact)]
    for name in BRANCHES:
        compared = deviation(getattr(result, name), plain[name], getattr(truth, name), num_terms=num_terms)
        assert compared.is_within, (name, compared)
    outs = (result.out, plain["out"], truth.out)
    grads = [gradients(out, leaf) for out, leaf in zip(outs, leaves, strict=True)]
    scale = max(largest(grad) for grad in grads[2])
    for name, *per_path in zip(tensors, *grads, strict=True):
        compared = deviation(*per_path, num_terms=num_terms, scale=scale)
        assert compared.is_within, (f"gradient of {name}", compared)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 16, 31, 65, 500, 1000])
def test_choice_equals_the_oracles_by_score(num_tokens: int, geometry: Geometry, dtype: torch.dtype) -> None:
    case = Case(num_tokens, 2, (16, 16), dtype, geometry)
    tensors = inputs(case)
    exact = {name: x.detach().double() for name, x in tensors.items()}
    slots = nsa_attention(**tensors, geometry=geometry, impl="vectorized").slots
    importance = oracle_importance(exact, geometry)
    expected = select_reference.choose_slots(importance, geometry, 0)

    def chosen_scores(chosen: Tensor) -> Tensor:
        scores = importance.gather(-1, chosen.clamp(min=0)).masked_fill(chosen == EMPTY_SLOT, 0)
        return scores.sort(-1).values

    if dtype == torch.float64:
        assert torch.equal(slots, expected)
    # Two choices may differ only where their scores differ by less than the scores' own rounding.
    rounding = 16 * torch.finfo(dtype).eps * importance.max().clamp(min=1)
    assert bool(((chosen_scores(slots) - chosen_scores(expected)).abs() <= rounding).all())
    assert torch.equal((slots == EMPTY_SLOT).sum(-1), (expected == EMPTY_SLOT).sum(-1))


def oracle_importance(tensors: dict[str, Tensor], geometry: Geometry) -> Tensor:
    from nsa.ops.compress.reference import compressed_attention

    _, probabilities = compressed_attention(tensors["q"], tensors["k_cmp"], tensors["v_cmp"], geometry, 0)
    groups, tokens = tensors["k_sel"].shape[2], tensors["k_sel"].shape[1]
    return score_reference.block_importance(probabilities, groups, geometry.num_blocks(tokens), geometry)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ties_go_to_the_lower_index(dtype: torch.dtype) -> None:
    geometry = Geometry(l=8, d=4, l_sel=16, n_sel=5, w=16)
    importance = torch.zeros(1, 320, 2, 20, dtype=dtype)
    importance[..., 7] = 1.0
    slots = select_vectorized.choose_slots(importance, geometry, 0)
    assert slots[0, 319, 0].tolist() == [0, 1, 7, 18, 19]
    assert torch.equal(slots, select_reference.choose_slots(importance, geometry, 0))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_importance_equals_the_oracles(geometry: Geometry) -> None:
    probabilities = torch.rand(2, 5, 6, geometry.num_compressed(300), dtype=torch.float64)
    expected = score_reference.block_importance(probabilities, 2, geometry.num_blocks(300), geometry)
    result = score_vectorized.group_importance(
        probabilities.unflatten(2, (2, -1)).sum(3), geometry.num_blocks(300), geometry
    )
    assert torch.allclose(result, expected, rtol=1e-14, atol=0)
