"""Parameters that the output does not need, and a loss or what a part returns beside its answer does, are a note."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Encoder(nn.Module):
    """States and the memory that the next segment reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.update = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = self.layer(x)
        return states, self.update(states[:, -1:])


class FirstAlone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)[0]


class WithinItself(nn.Module):
    """Makes an update that it gives to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.update = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        self.update(states)
        return states


class Masks(nn.Module):
    """A vector stands for what is hidden, and in an ordinary call nothing is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor, hides: Tensor | None = None) -> Tensor:
        hides = torch.zeros(x.shape[:2], dtype=torch.bool) if hides is None else hides
        return self.layer(torch.where(hides[..., None], self.hidden.to(x), x))


class PretrainedBy(Masks):
    def pretrain_loss(self, x: Tensor) -> Tensor:
        hides = torch.rand(x.shape[:2]) < 0.3
        return (self(x, hides) - x).square()[hides].mean()


class NeverHides(Masks):
    def pretrain_loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean()


class Decides(nn.Module):
    """A tag for each token is read on the host, as a path of best tags is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(DIM) * 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        tags = [[int(token.argmax()) for token in row] for row in (states.detach() + self.start).unbind()]
        return states + nn.functional.one_hot(torch.tensor(tags), DIM).to(states)


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(6, DIM))

    def nearest(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(torch.cdist(x.detach(), self.codes.detach()).argmin(-1), self.codes)


class Quantised(nn.Module):
    """The nearest codes of several stages, straight through: a loss beside the answer moves them to what chose them."""

    num_stages = 3

    def __init__(self) -> None:
        super().__init__()
        self.stages, self.up = nn.ModuleList(Stage() for _ in range(self.num_stages)), nn.Linear(DIM, DIM)

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, apart = x, x.new_zeros(())
        for stage in self.stages:
            chosen = stage.nearest(left)
            apart = apart + (left.detach() - chosen).square().mean()
            left = left - chosen.detach()
        return x - left, apart

    def forward(self, x: Tensor) -> Tensor:
        chosen, _ = self.nearest(x)
        return self.up(x + (chosen - x).detach())

    def loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean() + self.nearest(x)[1]


class ByProducts(Quantised):
    """The same codes, by a product with ones where they were chosen."""

    num_stages = 1

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.stages[0].codes
        chosen = nn.functional.one_hot(torch.cdist(x, codes).argmin(-1), len(codes)).type(x.dtype)
        found = torch.einsum("bnc,cd->bnd", chosen, codes)
        return x + (found - x).detach(), (x.detach() - found).square().mean()


class NeverMoved(Quantised):
    """The same, whose loss moves no codes."""

    def loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean() + self.nearest(x)[1].detach()


class Contrasted(nn.Module):
    """A scale that a loss reads through a property."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log_scale = nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(()))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.scale * first @ second.T, torch.arange(len(first)))


def test_what_decides_at_another_size_is_passed_over() -> None:
    result = run_check(registry.load("GRD201"), embedding_subject(Decides))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize(
    ("code", "make", "words"),
    [
        ("GRD201", FirstAlone, "learnt by a part of what forward returns (encoder[1]) alone, which is not handed on"),
        (
            "GRD201",
            Quantised,
            "3 parameters (stages.0.codes, stages.1.codes, stages.2.codes) learnt by the loss of loss",
        ),
        ("GRD201", ByProducts, "1 parameter (stages.0.codes) learnt by the loss of loss"),
        ("GRD208", Contrasted, "log_scale"),
        ("GRD208", PretrainedBy, "learnt by the loss of pretrain_loss alone"),
    ],
)
def test_what_is_needed_elsewhere_is_a_note(code: str, make: Callable[[], nn.Module], words: str) -> None:
    result = run_check(registry.load(code), embedding_subject(make))
    assert result.verdict is Verdict.PASS
    assert len(result.notes) == 1
    assert words in result.notes[0]


@pytest.mark.parametrize(
    ("code", "make"), [("GRD201", WithinItself), ("GRD201", NeverMoved), ("GRD208", Masks), ("GRD208", NeverHides)]
)
def test_what_nothing_needs_is_found(code: str, make: Callable[[], nn.Module]) -> None:
    (finding,) = run_check(registry.load(code), embedding_subject(make)).findings
    assert any(name in finding.message for name in ("update", "hidden", "stages.0.codes"))


class RelativeKeys(nn.Module):
    """Attention whose keys are moved by where two tokens stand to each other, all in one place where nobody says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.pairs = nn.Linear(DIM, 3 * DIM), nn.Linear(2, DIM, bias=False)

    def attend(self, x: Tensor, apart: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        keys = k[:, None] + self.pairs(apart + 1)
        return x + torch.einsum("bqd,bqkd->bqk", q, keys).softmax(-1) @ v

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        places = x.new_zeros(*x.shape[:2], 2) if places is None else places
        return self.attend(x, places[:, :, None] - places[:, None])


class KeysOfThemselves(RelativeKeys):
    """One that is told no places, and moves every key by the same."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x.new_zeros(*x.shape[:2], x.shape[1], 2))


def test_what_a_left_out_argument_makes_the_same_everywhere_is_a_note() -> None:
    result = run_check(registry.load("GRD208"), embedding_subject(RelativeKeys))
    assert not result.findings
    assert any("(pairs.weight) without effect where forward is not given places" in note for note in result.notes)


def test_what_is_the_same_everywhere_without_such_an_argument_is_a_finding() -> None:
    assert run_check(registry.load("GRD208"), embedding_subject(KeysOfThemselves)).findings
