"""GRD110: what only a model in half precision has wrong; rounding, terms that cancel and ends of a range are not."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 16


class Mixer(nn.Module):
    """Attention of one head; keys have a bias, whose gradient is zero: it moves all scores of a row alike."""

    def __init__(self, cut: str, half: torch.dtype) -> None:
        super().__init__()
        self.qkv, self.out, self.cut, self.half = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), cut, half

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if x.dtype == self.half and self.cut == "values":
            v = v.detach()
        if x.dtype == self.half and self.cut == "clamped":
            v = v.clamp(-0.2, 0.2)
        if self.cut == "beyond float16":
            v = v * 1e6
        if self.cut == "a number beyond float16":
            v = v.masked_fill(v > 100, -1e9)
        mixed = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        return self.out(_Halved.apply(mixed, self.half) if self.cut == "halved" else mixed)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, half):
        ctx.half = half
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient if gradient.dtype == ctx.half else gradient, None


class Model(nn.Module):
    def __init__(self, cut: str, half: torch.dtype) -> None:
        super().__init__()
        self.before, self.mixer, self.after = nn.Linear(DIM, DIM), Mixer(cut, half), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.mixer(self.before(x)))


def examined(make, seed: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="model", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",), seed=seed
    )
    return run_check(registry.load("GRD110"), subject)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("cut", "said"), [("values", "the gradient of"), ("halved", "the gradient of"), ("clamped", "the output differs")]
)
def test_what_half_precision_alone_has_wrong_is_found_in_its_module(cut: str, said: str, half: str) -> None:
    (finding,) = examined(lambda: Model(cut, getattr(torch, half))).findings
    assert f"converted to {half}, {said}" in finding.message
    assert finding.where.module in ("mixer", "mixer.out")
    assert finding.where.file == __file__


def test_a_number_that_float16_cannot_hold_is_a_note_at_its_line() -> None:
    result = examined(lambda: Model("a number beyond float16", torch.float16))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "without overflow (mixer (Mixer) at " in result.notes[0]


def test_what_leaves_the_range_of_float16_is_a_note() -> None:
    result = examined(lambda: Model("beyond float16", torch.float16))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert ["converted to float16, " in note and "gradients are not finite" in note for note in result.notes] == [True]


class Encoder(nn.TransformerEncoderLayer):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return super().forward(x, src_mask=hidden, is_causal=True)


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Choosing(nn.Linear):
    """A hard choice: the largest of the channels is kept."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (y == y.amax(-1, keepdim=True)) + x


HEALTHY = {
    "attention": lambda: Model("", torch.float16),
    "encoder": lambda: Encoder(DIM, 2, 32, batch_first=True),
    "gru": lambda: Recurrent(DIM, DIM, batch_first=True),
    "choice": lambda: Choosing(DIM, DIM),
    "dropout": lambda: nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.5), nn.Softmax(-1)),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", range(5))
def test_what_rounding_does_is_no_finding(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed)
    assert (result.findings, result.notes) == ((), ())


class Expert(nn.Linear):
    """One of two, of which each token takes one."""


class Routed(nn.Module):
    """Experts that are near to each other for many tokens: in half precision some take the other one."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.before, self.router, self.cut = nn.Linear(DIM, DIM), nn.Linear(DIM, 2), cut
        self.experts = nn.ModuleList(Expert(DIM, DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.before(x).flatten(0, 1)
        shares = (0.05 * self.router(flat)).softmax(-1)
        share, chosen = shares.max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            (tokens,) = (chosen == number).nonzero(as_tuple=True)
            found = expert(flat[tokens])
            found = found.detach() if self.cut and x.dtype == torch.bfloat16 else found
            out = out.index_add(0, tokens, found * share[tokens, None])
        return out.view_as(x)


@pytest.mark.parametrize("seed", range(6))
def test_experts_of_which_another_is_chosen_by_rounding_are_no_fault(seed: int) -> None:
    result = examined(lambda: Routed(cut=False), seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_cut_beside_experts_is_found() -> None:
    assert examined(lambda: Routed(cut=True)).verdict == Verdict.FAIL


class Norm(nn.Module):
    """A norm by the root of the mean of squares, in float32; `ends` says what becomes of its type."""

    def __init__(self, ends: str) -> None:
        super().__init__()
        self.weight, self.ends = nn.Parameter(torch.ones(DIM)), ends

    def forward(self, x: Tensor) -> Tensor:
        if self.ends == "all in float32":
            return x.float() * 2
        root = torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.ends == "taken back":
            return (x * root).to(x.dtype) * self.weight
        return x * root * self.weight


def normed(ends: str) -> Result:
    return examined(lambda: nn.Sequential(nn.Linear(DIM, DIM), Norm(ends), nn.Linear(DIM, DIM)))


def test_what_is_raised_to_float32_and_not_taken_back_is_found_where_it_meets_the_rest() -> None:
    (finding,) = normed("left").findings
    assert finding.message.startswith(
        "converted to bfloat16, a value that was raised to float32 meets half precision here"
    )
    assert (finding.where.module, finding.where.function) == ("1", "forward")
    assert finding.where.line == Norm.forward.__code__.co_firstlineno + 6


@pytest.mark.parametrize("ends", ["taken back", "all in float32"])
def test_what_is_taken_back_or_never_was_half_is_no_finding(ends: str) -> None:
    assert normed(ends).findings == ()


class ForAutocast(nn.Module):
    """Scores in float32, which autocast takes back and a conversion does not."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.bias = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = ((q @ k.mT).float() * DIM**-0.5 + self.bias).softmax(-1)
        return self.out(weights @ v)


def test_what_may_be_made_for_autocast_is_a_note() -> None:
    result = examined(ForAutocast)
    assert (result.verdict, result.findings, len(result.notes)) == (Verdict.PASS, (), 1)


class Averaged(nn.Module):
    """The mean of normed tokens, whose gradients are equal: torch's norm sums them in bfloat16 on a CPU."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.mix, self.norm, self.cut = nn.Linear(DIM, DIM), nn.LayerNorm(DIM), cut

    def forward(self, x: Tensor) -> Tensor:
        mixed = _Halved.apply(self.mix(x), torch.bfloat16) if self.cut else self.mix(x)
        return self.norm(mixed).mean(1, keepdim=True).expand_as(x)


def test_what_a_norm_of_torchs_sums_in_half_precision_is_a_note() -> None:
    result = examined(Averaged)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert any(
        "norm.bias" in note and "torch's own layer is handed the right gradient" in note for note in result.notes
    )


def test_a_fault_beside_it_is_found_all_the_same() -> None:
    (finding,) = examined(lambda: Averaged(cut=True)).findings
    assert "the gradient of mix." in finding.message
