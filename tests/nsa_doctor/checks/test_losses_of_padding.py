"""What padding, ignored targets and the order of rows do to a loss is found at its line; what is meant is silent."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

VOCABULARY, DIM, IGNORED = 16, 8, -100


def examined(code: str, make: Callable[[], nn.Module], **more: Any) -> Result:
    asked = {"input": "tokens", "width": VOCABULARY, "max_length": 64, "spec": ("causal",)} | more
    return run_check(registry.load(code), small_subject(make, **asked))


def is_marked(result: Result) -> bool:
    (finding,) = result.findings
    return linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


class Reads(nn.Module):
    """Logits of tokens by what stands before them."""

    def __init__(self, kind: str = "right", **more: Any) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, DIM, **more), nn.GRU(DIM, DIM, batch_first=True)
        self.head, self.kind = nn.Linear(DIM, VOCABULARY), kind

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids))[0])

    def losses(self, ids: Tensor, labels: Tensor, **more: Any) -> Tensor:
        return F.cross_entropy(self(ids).mT, labels, reduction="none", **more)


class ByLengths(Reads):
    def loss(self, ids: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        keep = torch.arange(ids.shape[1]) < lengths[:, None]
        each = self.losses(ids, targets)
        if self.kind == "mean of all":
            return (each * keep).mean()  # here
        if self.kind == "without lengths":
            return each.mean()  # here
        if self.kind == "smoothed over all":
            return (each * keep).sum() / keep.sum() - 0.1 * self(ids).log_softmax(-1).mean()  # here
        if self.kind == "sum":
            return (each * keep).sum()
        if self.kind == "rows apart":
            return ((each * keep).sum(1) / keep.sum(1)).mean()
        if self.kind == "drawn":
            return (each * keep).sum() / keep.sum() * torch.rand(())
        return (each * keep).sum() / keep.sum()


class ByMask(Reads):
    def loss(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        each = self.losses(ids, ids.roll(-1, 1))[:, :-1]
        if self.kind == "another token's":
            return (each * mask[:, :-1]).sum() / mask[:, :-1].sum()  # here
        if self.kind == "mean of all":
            return (each * mask[:, 1:]).mean()  # here
        return (each * mask[:, 1:]).sum() / mask[:, 1:].sum()


class OfPadding(Reads):
    """One whose mask is true for padding, and may be left out."""

    def loss(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        each = self.losses(ids, ids.roll(-1, 1))[:, :-1]
        if padding_mask is None:
            return each.mean()
        if self.kind == "mean of all":
            return each.masked_fill(padding_mask[:, 1:], 0.0).mean()  # here
        return each[~padding_mask[:, 1:]].mean()


class Ignoring(Reads):
    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        each = self.losses(ids, targets, ignore_index=IGNORED)
        if self.kind == "mean of all":
            return each.mean()  # here
        if self.kind == "sums of rows":
            return each.sum(1).mean()
        if self.kind == "sum":
            return each.sum()
        return each.sum() / (targets != IGNORED).sum()


class Corrupted(Reads):
    """Targets where a token was hidden; the mask is of padding, where there are none."""

    def loss(self, ids: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        states = self.embed(ids) if mask is None else self.embed(ids) * mask[..., None]
        return F.cross_entropy(self.head(states).mT, targets, ignore_index=IGNORED)


class Framewise(nn.Module):
    """A loss of frames against half as many labels."""

    def __init__(self, kind: str = "right") -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(DIM, VOCABULARY), kind

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def ctc_loss(self, x: Tensor, targets: Tensor, x_lens: Tensor, y_lens: Tensor) -> Tensor:
        scores = self(x).log_softmax(-1).transpose(0, 1)
        lens = torch.full_like(x_lens, x.shape[1]) if self.kind == "all frames" else x_lens
        labels = torch.full_like(y_lens, targets.shape[1]) if self.kind == "all labels" else y_lens
        return F.ctc_loss(scores, targets, lens, labels)  # here


class OfLogits(Reads):
    """A loss of what forward answers."""

    @staticmethod
    def masked_loss(logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        keep = torch.arange(logits.shape[1]) < lengths[:, None]
        return (F.cross_entropy(logits.mT, targets, reduction="none") * keep).mean()  # here


class Padded(ByLengths):
    """One that takes an id for padding, which the tokens behind a row have to be."""

    def __init__(self, kind: str = "right") -> None:
        super().__init__(kind, padding_idx=0)

    def losses(self, ids: Tensor, labels: Tensor, **more: Any) -> Tensor:
        return super().losses(ids, labels, **more) * (ids != 0).sum(1, keepdim=True)  # by all that is no padding


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "lengths, mean of all": lambda: ByLengths("mean of all"),
    "lengths that nothing reads": lambda: ByLengths("without lengths"),
    "lengths, smoothed over all": lambda: ByLengths("smoothed over all"),
    **{f"mask, {kind}": lambda kind=kind: ByMask(kind) for kind in ("another token's", "mean of all")},
    "mask of padding, mean of all": lambda: OfPadding("mean of all"),
    "ignored, mean of all": lambda: Ignoring("mean of all"),
    "of logits": OfLogits,
    "padding by its id, mean of all": lambda: Padded("mean of all"),
}
HEALTHY: dict[str, Callable[[], nn.Module]] = {
    **{f"lengths, {kind}": lambda kind=kind: ByLengths(kind) for kind in ("right", "sum", "rows apart")},
    **{f"ignored, {kind}": lambda kind=kind: Ignoring(kind) for kind in ("right", "sums of rows", "sum")},
    "mask": ByMask,
    "mask of padding": OfPadding,
    "corrupted": Corrupted,
    "padding by its id": Padded,
}


@pytest.mark.parametrize("name", FAULTY)
def test_padding_that_counts_is_found(name: str) -> None:
    assert is_marked(examined("GRD228", FAULTY[name]))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_loss_of_its_own_tokens_passes(name: str) -> None:
    result = examined("GRD228", HEALTHY[name])
    assert result.verdict is Verdict.PASS, result


@pytest.mark.parametrize("kind", ["right", "all frames", "all labels"])
def test_frames_and_labels_behind_a_row(kind: str) -> None:
    result = examined("GRD228", lambda: Framewise(kind), input="embeddings", width=DIM, is_width_kept=False)
    assert is_marked(result) if kind != "right" else result.verdict is Verdict.PASS


@pytest.mark.parametrize("make", [lambda: ByLengths("drawn"), lambda: nn.Linear(DIM, DIM)])
def test_what_draws_and_what_gives_none_is_not_asked(make: Callable[[], nn.Module]) -> None:
    assert examined("GRD228", make).verdict is Verdict.SKIP


class Flattens(Reads):
    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        labels = targets.t() if self.kind == "turned" else targets
        return F.cross_entropy(self(ids).flatten(0, 1), labels.flatten())  # here


class Pairs(Reads):
    """Each row is to be told from the others of its batch."""

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        rows, others = self.embed(ids).mean(1), self.embed(targets).mean(1)
        labels = torch.zeros(len(rows), dtype=torch.long) if self.kind == "first" else torch.arange(len(rows))
        return F.cross_entropy(rows @ others.mT, labels)  # here


@pytest.mark.parametrize("make", [lambda: Flattens("turned"), lambda: Pairs("first")])
def test_another_order_of_rows_is_found(make: Callable[[], nn.Module]) -> None:
    assert is_marked(examined("GRD229", make))


@pytest.mark.parametrize("make", [Flattens, Pairs, Ignoring])
def test_rows_may_come_in_any_order(make: Callable[[], nn.Module]) -> None:
    assert examined("GRD229", make).verdict is Verdict.PASS
