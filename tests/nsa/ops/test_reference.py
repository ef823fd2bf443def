"""The oracle against a brute force that knows no tensor: Python floats, one token at a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from nsa.ops.compress.reference import compress, compressed_attention, phi_avg, phi_conv, phi_mlp
from nsa.ops.gate.reference import mix
from nsa.ops.geometry import Geometry
from nsa.ops.score.reference import block_importance
from nsa.ops.select.reference import choose_slots, selected_attention
from nsa.ops.slide.reference import sliding_attention
from tests.nsa.gate_equation import gate_weights

BOUND = 1e-12
Vector = list[float]

GEOMETRIES = {
    "halves": Geometry(l=4, d=2, l_sel=8, n_sel=4, w=5),
    "l-equals-d": Geometry(l=3, d=3, l_sel=6, n_sel=4, w=4),
    "l-equals-l_sel": Geometry(l=8, d=2, l_sel=8, n_sel=3, w=8),
    "thirds": Geometry(l=6, d=2, l_sel=10, n_sel=3, w=100),
    "all-equal": Geometry(l=4, d=4, l_sel=4, n_sel=5, w=3),
    "ones": Geometry(l=1, d=1, l_sel=1, n_sel=4, w=1),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of one case; `queries` None asks for as many queries as tokens."""

    tokens: int
    heads: int
    groups: int
    d_k: int
    d_v: int
    queries: int | None = None
    rows: int = 2

    def __str__(self) -> str:
        new = "" if self.queries is None else f"-newest{self.queries}"
        return f"S{self.tokens}{new}-H{self.heads}-G{self.groups}-D{self.d_k}-{self.d_v}"


SHAPES = [
    Shape(tokens=1, heads=2, groups=1, d_k=2, d_v=2),
    Shape(tokens=2, heads=2, groups=2, d_k=2, d_v=3),
    Shape(tokens=9, heads=4, groups=2, d_k=4, d_v=2),
    Shape(tokens=16, heads=2, groups=2, d_k=2, d_v=2),
    Shape(tokens=37, heads=3, groups=1, d_k=2, d_v=3, rows=1),
    Shape(tokens=37, heads=4, groups=2, d_k=2, d_v=2, queries=5),
    Shape(tokens=41, heads=2, groups=1, d_k=4, d_v=2, queries=1),
]

everywhere = pytest.mark.parametrize(
    ("geometry", "shape"),
    [pytest.param(g, s, id=f"{name}-{s}") for name, g in GEOMETRIES.items() for s in SHAPES],
)


@dataclass(frozen=True)
class Case:
    """Random float64 inputs of one shape."""

    q: Tensor
    k: Tensor
    v: Tensor
    first_query: int

    @classmethod
    def of(cls, shape: Shape) -> "Case":
        generator = torch.Generator().manual_seed(shape.tokens)

        def random(*sizes: int) -> Tensor:
            return torch.randn(shape.rows, *sizes, dtype=torch.float64, generator=generator)

        queries = shape.tokens if shape.queries is None else shape.queries
        return cls(
            q=random(queries, shape.heads, shape.d_k),
            k=random(shape.tokens, shape.groups, shape.d_k),
            v=random(shape.tokens, shape.groups, shape.d_v),
            first_query=shape.tokens - queries,
        )


def assert_close(result: Tensor, expected: Tensor | list) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64).reshape(result.shape)
    assert bool(((result - expected).abs() <= BOUND).all()), (result - expected).abs().max()


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def affine(matrix: list[Vector], x: Vector, bias: Vector) -> Vector:
    return [dot(row, x) + b for row, b in zip(matrix, bias, strict=True)]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def softmax(scores: Vector) -> Vector:
    weights = [math.exp(score) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def attend(query: Vector, keys: list[Vector], values: list[Vector], d_v: int) -> tuple[Vector, Vector]:
    """Output and probabilities of one query and head; no keys give zeros."""
    probabilities = softmax([dot(query, key) / math.sqrt(len(query)) for key in keys])
    out = [math.fsum(p * value[i] for p, value in zip(probabilities, values, strict=True)) for i in range(d_v)]
    return out, probabilities


def attend_everywhere(case: Case, readable: Callable[[int, int, int], Sequence[int]]) -> list:
    """Output [B, T, H, Dv] where query (row, i, group) attends to the tokens `readable` lists."""
    q, k, v = case.q.tolist(), case.k.tolist(), case.v.tolist()
    rows, queries, heads = case.q.shape[:3]
    per_group = heads // case.k.shape[2]

    def one(b: int, i: int, head: int) -> Vector:
        group = head // per_group
        tokens = readable(b, i, group)
        keys, values = ([x[b][token][group] for token in tokens] for x in (k, v))
        return attend(q[b][i][head], keys, values, case.v.shape[-1])[0]

    return [[[one(b, i, head) for head in range(heads)] for i in range(queries)] for b in range(rows)]


def tokens_of_compressed(geometry: Geometry, num_tokens: int) -> list[list[int]]:
    blocks, start = [], 0
    while start + geometry.l <= num_tokens:
        blocks.append([start + offset for offset in range(geometry.l)])
        start += geometry.d
    return blocks


PHI_WEIGHTS = {
    name: torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    for name, size in {
        "position": (4, 2),
        "w1": (5, 8),
        "b1": (5,),
        "w2": (2, 5),
        "b2": (2,),
        "kernel": (2, 4),
        "w": (2, 2),
    }.items()
}
PHIS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": phi_avg,
    "mlp": lambda block: phi_mlp(block, *(PHI_WEIGHTS[name] for name in ("position", "w1", "b1", "w2", "b2"))),
    "conv": lambda block: phi_conv(block, *(PHI_WEIGHTS[name] for name in ("kernel", "w", "b2"))),
}


def phi_by_hand(kind: str, block: list[Vector]) -> Vector:
    """φ of one block of 4 tokens and 2 features."""
    weights = {name: weight.tolist() for name, weight in PHI_WEIGHTS.items()}
    if kind == "avg":
        return [math.fsum(token[i] for token in block) / len(block) for i in range(2)]
    if kind == "mlp":
        flat = [block[t][i] + weights["position"][t][i] for t in range(4) for i in range(2)]
        hidden = [silu(x) for x in affine(weights["w1"], flat, weights["b1"])]
        return affine(weights["w2"], hidden, weights["b2"])
    mixed = [math.fsum(block[t][i] * weights["kernel"][i][t] for t in range(4)) for i in range(2)]
    return affine(weights["w"], mixed, weights["b2"])


@pytest.mark.parametrize("kind", ["avg", "mlp", "conv"])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 6, 17], ids="S{}".format)
def test_compress_is_phi_of_every_complete_block(kind: str, num_tokens: int) -> None:
    geometry = GEOMETRIES["halves"]
    x = torch.randn(2, num_tokens, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(num_tokens))
    blocks = tokens_of_compressed(geometry, num_tokens)
    expected = [
        [[phi_by_hand(kind, [row[token][group] for token in block]) for group in range(3)] for block in blocks]
        for row in x.tolist()
    ]
    result = compress(x, PHIS[kind], geometry)
    assert result.shape == (2, len(blocks), 3, 2)
    assert_close(result, expected)


@everywhere
def test_compressed_attention_reads_the_blocks_that_have_ended(geometry: Geometry, shape: Shape) -> None:
    case = Case.of(shape)
    k_cmp, v_cmp = (compress(x, phi_avg, geometry) for x in (case.k, case.v))
    blocks = tokens_of_compressed(geometry, shape.tokens)
    q, k, v = case.q.tolist(), k_cmp.tolist(), v_cmp.tolist()
    expected_out, expected_probabilities = (
        torch.zeros(*case.q.shape[:3], shape.d_v),
        torch.zeros(*case.q.shape[:3], len(blocks)),
    )
    expected_out, expected_probabilities = expected_out.double(), expected_probabilities.double()
    for b, i, head in [
        (b, i, h) for b in range(shape.rows) for i in range(case.q.shape[1]) for h in range(shape.heads)
    ]:
        group, position = head * shape.groups // shape.heads, case.first_query + i
        seen = [c for c, block in enumerate(blocks) if max(block) <= position]
        out, probabilities = attend(
            q[b][i][head], [k[b][c][group] for c in seen], [v[b][c][group] for c in seen], shape.d_v
        )
        expected_out[b, i, head] = torch.tensor(out, dtype=torch.float64)
        expected_probabilities[b, i, head, : len(seen)] = torch.tensor(probabilities, dtype=torch.float64)
    out, probabilities = compressed_attention(case.q, k_cmp, v_cmp, geometry, case.first_query)
    assert_close(out, expected_out)
    assert_close(probabilities, expected_probabilities)


@everywhere
def test_importance_counts_a_compressed_block_once_for_every_shared_stride(geometry: Geometry, shape: Shape) -> None:
    blocks = tokens_of_compressed(geometry, shape.tokens)
    num_blocks = math.ceil(shape.tokens / geometry.l_sel)
    generator = torch.Generator().manual_seed(shape.tokens)
    probabilities = torch.rand(2, 3, shape.heads, len(blocks), dtype=torch.float64, generator=generator)
    p, per_group = probabilities.tolist(), shape.heads // shape.groups

    def one(b: int, i: int, group: int, j: int) -> float:
        shared = [sum(token // geometry.l_sel == j for token in block) // geometry.d for block in blocks]
        heads = range(group * per_group, (group + 1) * per_group)
        return math.fsum(p[b][i][head][c] * count for head in heads for c, count in enumerate(shared))

    expected = [
        one(b, i, group, j)
        for b in range(2)
        for i in range(3)
        for group in range(shape.groups)
        for j in range(num_blocks)
    ]
    assert_close(block_importance(probabilities, shape.groups, num_blocks, geometry), expected)


def choose_by_hand(scores: Vector, position: int, geometry: Geometry) -> list[int]:
    """Slots of one query: forced blocks first, then the best of the rest, one at a time."""
    candidates = [j for j in range(len(scores)) if j * geometry.l_sel <= position]
    chosen = {candidates[0], *candidates[-2:]}
    while len(chosen) < geometry.n_sel and len(chosen) < len(candidates):
        rest = [j for j in candidates if j not in chosen]
        best = rest[0]
        for j in rest:
            if scores[j] > scores[best]:  # an equal one later does not displace it
                best = j
        chosen.add(best)
    return sorted(chosen) + [-1] * (geometry.n_sel - len(chosen))


@everywhere
@pytest.mark.parametrize("levels", [1, 2, 1000], ids=["all-tied", "many-ties", "few-ties"])
def test_slots_are_the_forced_blocks_then_the_most_important(geometry: Geometry, shape: Shape, levels: int) -> None:
    case = Case.of(shape)
    num_blocks = math.ceil(shape.tokens / geometry.l_sel)
    size = (shape.rows, case.q.shape[1], shape.groups, num_blocks)
    importance = torch.randint(levels, size, generator=torch.Generator().manual_seed(3)).double() / levels
    slots = choose_slots(importance, geometry, case.first_query)
    assert slots.shape == (*size[:3], geometry.n_sel)
    for b, i, group in [(b, i, g) for b in range(shape.rows) for i in range(size[1]) for g in range(shape.groups)]:
        expected = choose_by_hand(importance[b, i, group].tolist(), case.first_query + i, geometry)
        assert slots[b, i, group].tolist() == expected


@everywhere
def test_selected_attention_reads_the_tokens_of_its_blocks_up_to_its_own(geometry: Geometry, shape: Shape) -> None:
    case = Case.of(shape)
    size = (shape.rows, case.q.shape[1], shape.groups, math.ceil(shape.tokens / geometry.l_sel))
    importance = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    slots = choose_slots(importance, geometry, case.first_query)

    def readable(b: int, i: int, group: int) -> list[int]:
        chosen = set(slots[b, i, group].tolist())
        return [token for token in range(case.first_query + i + 1) if token // geometry.l_sel in chosen]

    assert_close(selected_attention(case.q, case.k, case.v, slots, geometry), attend_everywhere(case, readable))


@everywhere
def test_sliding_attention_reads_the_w_newest_tokens(geometry: Geometry, shape: Shape) -> None:
    case = Case.of(shape)

    def readable(b: int, i: int, group: int) -> list[int]:
        position = case.first_query + i
        return [token for token in range(shape.tokens) if position - geometry.w < token <= position]

    assert_close(sliding_attention(case.q, case.k, case.v, geometry), attend_everywhere(case, readable))


@pytest.mark.parametrize(("kind", "temperature"), [("softmax", 1.0), ("softmax", 0.25), ("sigmoid", 1.0)])
def test_gate_weights_are_the_two_layers_by_hand(kind: str, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, 3, 2, 4), (5, 4), (5,), (3, 5), (3,)]
    query_mean, w1, b1, w2, b2 = (torch.randn(*size, dtype=torch.float64, generator=generator) for size in sizes)
    expected = []
    for query in query_mean.flatten(0, 2).tolist():
        hidden = [silu(x) for x in affine(w1.tolist(), query, b1.tolist())]
        logits = affine(w2.tolist(), hidden, b2.tolist())
        by_softmax = softmax([logit / temperature for logit in logits])
        expected.append(by_softmax if kind == "softmax" else [1 / (1 + math.exp(-logit)) for logit in logits])
    assert_close(gate_weights(query_mean, w1, b1, w2, b2, kind, temperature), expected)


@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (4, 2), (6, 2), (3, 3)], ids=str)
def test_the_mix_weighs_compressed_selected_and_sliding_in_this_order(heads: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    branches = [torch.randn(2, 3, heads, 2, dtype=torch.float64, generator=generator) for _ in range(3)]
    gates = torch.rand(2, 3, groups, 3, dtype=torch.float64, generator=generator)
    compressed, selected, sliding = (branch.tolist() for branch in branches)
    weights, per_group = gates.tolist(), heads // groups
    expected = [
        weights[b][t][head // per_group][0] * compressed[b][t][head][i]
        + weights[b][t][head // per_group][1] * selected[b][t][head][i]
        + weights[b][t][head // per_group][2] * sliding[b][t][head][i]
        for b in range(2)
        for t in range(3)
        for head in range(heads)
        for i in range(2)
    ]
    assert_close(mix(*branches, gates), expected)
