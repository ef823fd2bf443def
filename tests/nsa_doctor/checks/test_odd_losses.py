"""Losses that are right in ways of their own are silent; methods that are named after a loss and give none stay."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_losses_of_padding import DIM, VOCABULARY, Reads, examined
from tests.nsa_doctor.small_subjects import small_subject


class IgnoresMinusOne(Reads):
    """Labels of padding are -1."""

    def loss(self, ids: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        return F.cross_entropy(self(ids).mT, labels, ignore_index=-1)


class ByItsOwnId(Reads):
    """Labels that are padding by their id do not count."""

    pad_token_id = 3

    def loss(self, ids: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        keep = labels != self.pad_token_id
        each = F.cross_entropy(self(ids).mT, labels, reduction="none")
        return (each * keep).sum() / keep.sum()


class OfMaskedLogits(nn.Module):
    """Attention in both directions, whose padding is masked in its forward and in the loss of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(DIM, DIM), nn.Linear(DIM, VOCABULARY)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores = self.mix(x) @ x.mT
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask.bool()[:, None], -1e9)
        return self.head(scores.softmax(-1) @ x)

    def loss(self, logits: Tensor, targets: Tensor, attention_mask: Tensor) -> Tensor:
        each = F.cross_entropy(logits.mT, targets, reduction="none")
        return (each * attention_mask).sum() / attention_mask.sum()


class FillsIn(nn.Module):
    """The mask says what is hidden, and to be told from the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.hidden = nn.GRU(DIM, DIM, batch_first=True, bidirectional=True), nn.Parameter(torch.zeros(DIM))
        self.out = nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(x)[0])

    def loss(self, x: Tensor, mask: Tensor) -> Tensor:
        answers = self(torch.where(mask.bool()[..., None], self.hidden.to(x), x))
        return (answers - x).square()[mask.bool()].mean()


class AfterPrompts(Reads):
    """What a prompt says is not learnt."""

    def loss(self, ids: Tensor, labels: Tensor, prompt_lens: Tensor | None = None) -> Tensor:
        each = F.cross_entropy(self(ids).mT, labels, reduction="none")
        lens = torch.zeros(len(ids)) if prompt_lens is None else prompt_lens
        keep = torch.arange(ids.shape[1]) >= lens[:, None]
        return (each * keep).sum() / keep.sum().clamp(min=1)


class Convolves(nn.Module):
    """A token reads its neighbours, which are zeros behind a row."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Conv1d(DIM, DIM, 3, padding=1), nn.Linear(DIM, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x.mT).mT)

    def loss(self, x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        keep = torch.arange(x.shape[1]) < lengths[:, None]
        each = F.cross_entropy(self(x).mT, targets, reduction="none")
        return (each * keep).sum() / keep.sum()


OF_PADDING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "labels of -1": (IgnoresMinusOne, "tokens"),
    "labels that are padding": (ByItsOwnId, "tokens"),
    "logits": (OfMaskedLogits, "embeddings"),
    "what is hidden": (FillsIn, "embeddings"),
    "prompts": (AfterPrompts, "tokens"),
    "a convolution": (Convolves, "embeddings"),
}


@pytest.mark.parametrize("name", OF_PADDING)
def test_a_loss_with_its_own_way_to_leave_padding_out_is_silent(name: str) -> None:
    make, kind = OF_PADDING[name]
    width = VOCABULARY if kind == "tokens" else DIM
    result = examined("GRD228", make, input=kind, width=width, is_width_kept=False)
    assert result.findings == (), result


class Contrasts(nn.Module):
    """Rows of one label against all others."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        rows = F.normalize(self(x).mean(1), dim=-1)
        itself = torch.eye(len(x), dtype=torch.bool)
        scores = (rows @ rows.mT).masked_fill(itself, -1e9).log_softmax(1)
        alike = (labels[:, None] == labels[None]) & ~itself
        return -(scores * alike).sum(1).div(alike.sum(1).clamp(min=1)).mean()


class OfPairs(Contrasts):
    """The first half are chosen, the second rejected, and neighbours are compared beside."""

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        values = self(x).mean((1, 2)) + 0 * labels.flatten(1).double().mean(1)
        first, second = values.chunk(2)
        return F.softplus(second - first).mean()


class OfNeighbours(OfPairs):
    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        values = self(x).mean((1, 2)) + 0 * labels.flatten(1).double().mean(1)
        return F.softplus(values[1::2] - values[0::2]).mean()


@pytest.mark.parametrize("make", [Contrasts, OfPairs, OfNeighbours])
def test_rows_that_belong_together_may_stand_so(make: Callable[[], nn.Module]) -> None:
    result = run_check(registry.load("GRD229"), small_subject(make, width=DIM, max_length=64))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class WritesFiles(Reads):
    """A parameter that no pass needs, and methods named after a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.randn(DIM))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + 0 * self.spare.sum()

    def save_loss(self, path: str) -> None:
        Path(str(path)[:20]).write_text("saved", encoding="utf-8")

    def loss_to_file(self, name: str) -> None:
        Path(str(name)[:20]).write_text("saved", encoding="utf-8")

    def plot_loss(self, x: Tensor) -> Tensor:
        Path("plotted").write_text("saved", encoding="utf-8")
        return x.double().sum()


@pytest.mark.parametrize("code", ["GRD208", "GRD228", "GRD229", "GRD230"])
def test_what_is_named_after_a_loss_and_gives_none_is_not_called(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examined(code, WritesFiles)
    assert list(tmp_path.iterdir()) == []
