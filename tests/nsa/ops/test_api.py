"""What `nsa_attention` promises whatever serves it: causality, dense attention, packing, reads, refusals."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsa.ops.api import compress_tokens, nsa_attention
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.reads import ReadCounter

from .cases import Case, inputs, masked_attention

SMALL = Geometry(l=8, d=4, l_sel=16, n_sel=4, w=20)
IMPLS = ("reference", "vectorized", "fused")
BRANCHES = ("compressed", "selected", "sliding", "out")


def small_inputs(num_tokens: int, *, heads_per_group: int = 2, geometry: Geometry = SMALL) -> dict[str, Tensor]:
    return inputs(Case(num_tokens, heads_per_group, (16, 16), torch.float64, geometry))


def compressed_of(tensors: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
    """The inputs with compressed blocks made from the selected branch's tokens, so that every token is its source."""
    made = {f"{x}_cmp": compress_tokens(tensors[f"{x}_sel"], geometry) for x in ("k", "v")}
    return {**tensors, **made}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("token", [0, 7, 8, 15, 16, 31, 63, 64, 95])
def test_a_token_changes_no_earlier_output(impl: str, token: int) -> None:
    tensors = {name: x.detach() for name, x in small_inputs(96).items()}
    moved = {name: x.clone() for name, x in tensors.items()}
    for name in ("q", "k_sel", "v_sel", "k_win", "v_win"):
        moved[name][:, token] += 1e4
    before = nsa_attention(**compressed_of(tensors, SMALL), geometry=SMALL, impl=impl)
    after = nsa_attention(**compressed_of(moved, SMALL), geometry=SMALL, impl=impl)
    for branch in BRANCHES:
        assert torch.equal(getattr(before, branch)[:, :token], getattr(after, branch)[:, :token]), branch
    assert torch.equal(before.slots[:, :token], after.slots[:, :token])
    assert not torch.equal(before.out[:, token:], after.out[:, token:])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("query", [0, 7, 8, 40, 94])
def test_no_gradient_flows_to_a_later_token(impl: str, query: int) -> None:
    tensors = small_inputs(96)
    output = nsa_attention(**compressed_of(tensors, SMALL), geometry=SMALL, impl=impl)
    names = ("q", "k_sel", "v_sel", "k_win", "v_win")
    grads = torch.autograd.grad(output.out[:, query].square().sum(), [tensors[name] for name in names])
    for name, grad in zip(names, grads, strict=True):
        assert not grad[:, query + 1 :].any(), name
        assert grad[:, : query + 1].any() or (query == 0 and name != "v_sel"), name


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 33, 64])
def test_full_coverage_is_dense_causal_attention(impl: str, num_tokens: int) -> None:
    geometry = Geometry(l=8, d=4, l_sel=16, n_sel=4, w=64)
    tensors = small_inputs(num_tokens, geometry=geometry)
    output = nsa_attention(**tensors, geometry=geometry, impl=impl)
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()[None, :, None]
    for branch, name in (("selected", "sel"), ("sliding", "win")):
        expected = masked_attention(tensors["q"], tensors[f"k_{name}"], tensors[f"v_{name}"], causal)
        assert float((getattr(output, branch) - expected).detach().abs().max()) <= 1e-12, branch


@pytest.mark.parametrize("impl", IMPLS)
def test_a_branch_that_sees_nothing_is_zero_forward_and_backward(impl: str) -> None:
    tensors = small_inputs(12)
    output = nsa_attention(**tensors, geometry=SMALL, impl=impl)
    assert not output.compressed[:, :7].any()
    grads = torch.autograd.grad(
        output.compressed[:, :7].sum(), [tensors["q"], tensors["k_cmp"]], allow_unused=True, materialize_grads=True
    )
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("impl", ["reference", "vectorized"])
def test_a_query_without_slots_selects_nothing(impl: str) -> None:
    tensors = small_inputs(40)
    slots = torch.full((2, 40, 2, 4), EMPTY_SLOT)
    slots[:, 20:, :, 0] = 1
    output = nsa_attention(**tensors, geometry=SMALL, slots=slots, impl=impl)
    assert not output.selected[:, :20].any()
    assert output.selected[:, 20:].any(dim=-1).all()
    grads = torch.autograd.grad(output.selected.sum(), [tensors["q"], tensors["k_sel"]])
    assert not grads[0][:, :20].any()
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("lengths", [(40,), (1, 39), (7, 8, 25), (16, 0, 17, 33)], ids=str)
def test_packed_equals_separate(impl: str, lengths: tuple[int, ...]) -> None:
    total = sum(lengths)
    tensors = {name: x[:1].detach().requires_grad_() for name, x in small_inputs(total).items()}
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    compressed = {
        name: compress_tokens(tensors[name.replace("cmp", "sel")], SMALL, cu_seqlens=offsets)
        for name in ("k_cmp", "v_cmp")
    }
    packed = nsa_attention(**{**tensors, **compressed}, geometry=SMALL, cu_seqlens=offsets, impl=impl)
    names = [name for name in tensors if "cmp" not in name]
    parts = zip(*(tensors[name].split(list(lengths), 1) for name in names), strict=True)
    separate = [
        nsa_attention(**compressed_of(dict(zip(names, part, strict=True)), SMALL), geometry=SMALL, impl=impl)
        for part in parts
        if part[0].shape[1]
    ]
    for branch in (*BRANCHES, "slots"):
        joined = torch.cat([getattr(output, branch) for output in separate], 1)
        assert torch.equal(getattr(packed, branch), joined), branch
    leaves = [tensors[name] for name in names]
    expected = torch.autograd.grad(torch.cat([output.out for output in separate], 1).square().sum(), leaves)
    for got, want in zip(torch.autograd.grad(packed.out.square().sum(), leaves), expected, strict=True):
        assert float((got - want).abs().max()) <= 1e-12 * float(want.abs().max())


@pytest.mark.parametrize("num_queries", [1, 3, 17, 50])
def test_the_last_queries_alone_give_their_part_of_the_whole(num_queries: int) -> None:
    tensors = {name: x.detach() for name, x in small_inputs(50).items()}
    whole = nsa_attention(**tensors, geometry=SMALL)
    window = SMALL.w + num_queries - 1
    last = {
        name: x[:, -num_queries:] if name in ("q", "gates") else x[:, -window:] if "win" in name else x
        for name, x in tensors.items()
    }
    part = nsa_attention(**last, geometry=SMALL)
    for branch in (*BRANCHES, "slots"):
        difference = getattr(whole, branch)[:, -num_queries:] - getattr(part, branch)
        assert float(difference.abs().max()) <= 1e-13, branch


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 31, 50, 97])
def test_reads_are_counted_as_the_geometry_says(num_tokens: int) -> None:
    reads = ReadCounter()
    output = nsa_attention(**small_inputs(num_tokens), geometry=SMALL, reads=reads)
    for query in range(num_tokens):
        expected = SMALL.num_reads(query, output.slots[0, query, 1].tolist())
        counted = tuple(int(counts[0, query, 1]) for counts in (reads.compressed, reads.selected, reads.sliding))
        assert counted == (expected.compressed, expected.selected, expected.sliding), query


@pytest.mark.parametrize(
    ("offsets", "dtype"),
    [
        pytest.param([0, 40], torch.int64, id="int64"),
        pytest.param([1, 40], torch.int32, id="starts-late"),
        pytest.param([0, 30, 20, 40], torch.int32, id="falls"),
        pytest.param([0, 39], torch.int32, id="ends-early"),
        pytest.param([0, 41], torch.int32, id="ends-late"),
        pytest.param([40], torch.int32, id="one-entry"),
        pytest.param([0, -5, 40], torch.int32, id="negative"),
        pytest.param([0, 2147483647, 40], torch.int32, id="unwritten-memory"),
    ],
)
def test_cu_seqlens_that_describe_another_row_are_refused(offsets: list[int], dtype: torch.dtype) -> None:
    tensors = {name: x[:1] for name, x in small_inputs(40).items()}
    with pytest.raises(ValueError, match="cu_seqlens must"):
        nsa_attention(**tensors, geometry=SMALL, cu_seqlens=torch.tensor(offsets, dtype=dtype))


def test_cu_seqlens_need_one_row() -> None:
    with pytest.raises(ValueError, match="one row"):
        nsa_attention(**small_inputs(40), geometry=SMALL, cu_seqlens=torch.tensor([0, 40], dtype=torch.int32))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        pytest.param([[0, 3, -1, -1]], "in \\[0, 3\\)", id="past-the-end"),
        pytest.param([[0, -2, -1, -1]], "in \\[0, 3\\)", id="negative"),
        pytest.param([[0, 1, 1, -1]], "once per query", id="twice"),
    ],
)
def test_slots_that_are_no_choice_are_refused(slots: list[list[int]], message: str) -> None:
    held = torch.tensor(slots).expand(2, 40, 2, 4)
    with pytest.raises(ValueError, match=message):
        nsa_attention(**small_inputs(40), geometry=SMALL, slots=held)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda x: x[..., :3, :], "q must have a multiple of the 2 kv groups"),
        ("q", lambda x: torch.cat([x, x], 1), "q must have 1 to 40 tokens"),
        ("k_cmp", lambda x: x[:, 1:], "v_cmp must have shape"),
        ("k_win", lambda x: x[:, 30:], "k_win must have 40 to 40 tokens"),
        ("v_sel", lambda x: x.float(), "v_sel must have the floating dtype of q"),
        ("gates", lambda x: x[..., :2], "gates must have shape"),
        ("k_sel", lambda x: x.to("meta"), "k_sel must be on the device of q"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_arguments_that_do_not_fit_are_refused(name: str, change: Callable[[Tensor], Tensor], message: str) -> None:
    tensors = small_inputs(40)
    tensors[name] = change(tensors[name])
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(nsa_attention)(**tensors, geometry=SMALL)  # the tests' own shape checks come first otherwise


def test_arguments_are_left_as_they_were() -> None:
    tensors = small_inputs(40)
    copies = {name: x.detach().clone() for name, x in tensors.items()}
    nsa_attention(**tensors, geometry=SMALL).out.sum().backward()
    assert all(torch.equal(x, copies[name]) for name, x in tensors.items())


@pytest.mark.parametrize("view", ["transposed", "expanded"])
def test_strides_change_nothing(view: str) -> None:
    tensors = {name: x.detach() for name, x in small_inputs(40).items()}
    if view == "expanded":
        tensors = {name: x[:1].expand(2, -1, -1, -1) for name, x in tensors.items()}
        strided = tensors
        tensors = {name: x.contiguous() for name, x in tensors.items()}
    else:
        strided = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in tensors.items()}
    plain, other = (nsa_attention(**named, geometry=SMALL) for named in (tensors, strided))
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))
