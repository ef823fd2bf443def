"""Gradients of modules that run in half precision alone: a backward by hand that is wrong is found, and no other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared import halved
from nsa_doctor.checks.grd.grd101_gradient_differs_from_derivative import CHECK
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.subject.contract import Subject
from tests.nsa_doctor.functions.wrong import flash

WIDTH = 64
SEEDS = (0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 22)))
Attend = Callable[..., Tensor]


class Layer(nn.Module):
    """Attention through a kernel that serves half precision alone."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.qkv, self.out, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.bfloat16, torch.float16):
            raise TypeError(f"only half precision is served, got {x.dtype}")
        q, k, v = (each.unflatten(-1, (4, -1)) for each in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v, causal=True).flatten(2))


class Stack(nn.Module):
    """Two layers with a feed-forward part each, residual."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(attend), Layer(attend)])
        self.wide = nn.ModuleList([nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)])
        self.narrow = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        for layer, wide, narrow in zip(self.layers, self.wide, self.narrow, strict=True):
            x = x + layer(x)
            x = x + narrow(torch.relu(wide(x)))
        return x


def of_the_best_keys(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """To the eight keys with the highest scores, whose choice has no gradient; values through a backward by hand."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k).float() * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(q.shape[1], q.shape[1]).triu(1).bool(), -1e30)
    least = scores.topk(8, -1).values[..., -1:]
    weights = scores.masked_fill(scores < least, -1e30).softmax(-1).to(v.dtype)
    return torch.einsum("bhij,bjhd->bihd", weights, Same.apply(v))


class Same(torch.autograd.Function):
    """What it is given, forward and backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        return gradients[0]


def findings(make: Callable[[], nn.Module], seed: int = 0, dtype: str = "bfloat16") -> list[Finding]:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make().to(getattr(torch, dtype))

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=WIDTH,
        max_length=200,
        dtype=dtype,
        seed=seed,
        profile="smoke",
    )
    return [each for each in CHECK.run(subject) if isinstance(each, Finding)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.full)])
@pytest.mark.parametrize("make", [Layer, pytest.param(Stack, marks=pytest.mark.full)])
def test_a_layer_that_is_right_is_silent(make: Callable[[Attend], nn.Module], dtype: str, seed: int) -> None:
    assert findings(lambda: make(flash("")), seed, dtype) == []


@pytest.mark.parametrize(
    ("make", "slip"),
    [
        (Layer, "dk 5 % too large"),
        (Layer, "dq of the last head negative"),
        pytest.param(Layer, "no sum over the row", marks=pytest.mark.full),
        pytest.param(Stack, "dq of the last head negative", marks=pytest.mark.full),
        pytest.param(Stack, "no sum over the row", marks=pytest.mark.full),
    ],
)
def test_a_backward_that_is_wrong_is_found_in_half_precision(make: Callable[[Attend], nn.Module], slip: str) -> None:
    (finding,) = findings(lambda: make(flash(slip)))
    assert "in bfloat16, in every batch" in finding.message
    assert finding.where.file == __file__


def test_the_part_of_the_keys_is_named_where_their_gradient_is_wrong() -> None:
    (finding,) = findings(lambda: Layer(flash("dk 5 % too large")))
    assert any(f"rows {rows} of qkv.weight" in finding.message for rows in ("64 to 95", "96 to 127"))
    assert 0.04 < float(finding.evidence["deviation"]) < 0.06


def test_where_choices_flip_nothing_is_said() -> None:
    with pytest.raises(NotComparableError, match="changes a row of its output by a jump"):
        findings(lambda: Layer(of_the_best_keys))


def test_the_gradients_of_torch_alone_are_not_examined() -> None:
    def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        rows = (x.transpose(1, 2) for x in (q, k, v))
        return nn.functional.scaled_dot_product_attention(*rows, is_causal=causal).transpose(1, 2)

    with pytest.raises(NotComparableError, match="no backward of its own"):
        findings(lambda: Layer(plain))


def test_parameters_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[Tensor], nn.Module]] = []
    whole = halved.half_findings

    def watched(subject, made, code):
        seen.append(([each.detach().clone() for each in made.module.parameters()], made.module))
        yield from whole(subject, made, code)

    monkeypatch.setattr("nsa_doctor.checks.grd.grd101_gradient_differs_from_derivative.half_findings", watched)
    findings(lambda: Layer(flash("")))
    ((before, module),) = seen
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
