"""Pools under a mask of no padding: a mean that becomes a sum is found, where tokens are taken together."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH = 8


class Pool(nn.Module):
    """The mean of tokens [B, S, D] under a mask [B, S], true for tokens."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        keep = mask[..., None].to(x)
        return (x * keep).sum(1) / keep.sum(1).clamp(min=1)


class Sentence(nn.Module):
    """One answer for a row: its tokens, pooled by another part that is always given a mask."""

    shape: tuple[slice | None, ...] = (slice(None),)

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.layer, self.pool, self.head = nn.Linear(WIDTH, WIDTH), pool, nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        return self.head(self.pool(self.layer(x).tanh(), keep[self.shape]).tanh())


class OfOneQuery(Sentence):
    """The mask has the shape [B, 1, S]."""

    shape = (slice(None), None)


class OfHeads(Sentence):
    """The mask has the shape [B, 1, 1, S]."""

    shape = (slice(None), None, None)


class SumUnderAMask(Pool):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        keep = mask[..., None].to(x)
        return (x * keep).sum(1)  # here


class ByAProduct(Pool):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            return torch.bmm(mask.to(x), x).mean(1)  # here
        return x.mean(1)


class OfAttention(Pool):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        weights = mask[:, 0, 0].to(x)
        pooled = torch.einsum("bs,bsd->bd", weights, x)  # here
        return pooled / 2


class MeanPool(nn.Module):
    """A mask is always given."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept = x.masked_fill(~mask[..., None], 0.0)
        return kept.sum(1)  # here


class Pooling(MeanPool):
    def __init__(self, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.pooling == "mean":
            return torch.einsum("bsd,bs->bd", x, mask.to(x)) / 16  # here
        return (x * mask[..., None]).sum(1)


class Whole(nn.Module):
    """Pools in its own forward, before a layer."""

    def __init__(self, is_counted: bool) -> None:
        super().__init__()
        self.layer, self.head, self.is_counted = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5), is_counted

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = self.layer(x).tanh()
        if padding_mask is None:
            return self.head(x.mean(1)).tanh()
        keep = (~padding_mask.bool()).to(x)[..., None]
        pooled = (x * keep).sum(1)  # here
        pooled = pooled / keep.sum(1) if self.is_counted else pooled
        return self.head(pooled).tanh()


class OfOneMask(nn.Module):
    """Takes a mask of padding [B, 1, S] itself."""

    def __init__(self, is_counted: bool) -> None:
        super().__init__()
        self.layer, self.head, self.is_counted = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5), is_counted

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        x = self.layer(x).tanh()
        if pad_mask is None:
            return self.head(x.mean(1))
        keep = (~pad_mask).to(x)
        pooled = torch.bmm(keep, x).sum(1)  # here
        return self.head(pooled / keep.sum(-1) if self.is_counted else pooled)


FAULTY = {
    "a sum": lambda: Sentence(SumUnderAMask()),
    "a product": lambda: OfOneQuery(ByAProduct()),
    "an einsum": lambda: OfHeads(OfAttention()),
    "a class": lambda: Sentence(MeanPool()),
    "a way": lambda: Sentence(Pooling("mean")),
    "its own forward": lambda: Whole(False),
    "its own mask of one query": lambda: OfOneMask(False),
}


class SumPool(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x.sum(1) if mask is None else (x * mask[..., None]).sum(1)


class Readout(nn.Module):
    """A sum without a name."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask[..., None]).sum(1)


class BySquareRoot(nn.Module):
    """Between a sum and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.pooling_mode = "mean_sqrt_len"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).to(x).sqrt()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.score(x)[..., 0]
        scores = scores if mask is None else scores.masked_fill(~mask, torch.finfo(x.dtype).min)
        return torch.einsum("bs,bsd->bd", scores.softmax(-1), x)


class Largest(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask[..., None], -1e9).amax(1)


class MeanOfFirst(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x[:, :2].mean(1)


class MeanAndSum(nn.Module):
    """Both, side by side."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        total = (x * mask[..., None]).sum(1)
        return (total / mask.sum(1, keepdim=True)) + 0.1 * total.tanh()


class SumPart(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x.sum(1) if mask is None else (x * mask[..., None]).sum(1)


class SumAndCount(nn.Module):
    """Both, for what divides them elsewhere."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return (x * mask[..., None]).sum(1), mask.sum(1, keepdim=True)


class MeanElsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = AveragePool()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        total, number = self.mean(x, mask)
        return total / number


class AveragePool(SumAndCount):
    pass


class SumWithALoss(Readout):
    """Energies are summed; the loss is a mean, and so is what heads come to."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction, self.agg_heads = "mean", "mean"

    def loss(self, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self(x, mask), y, reduction=self.reduction)


class MeanInTwo(nn.Module):
    """A sum that a part is given, divided behind it; of a mean where no mask is."""

    def __init__(self, behind: nn.Module) -> None:
        super().__init__()
        self.total, self.behind = SumPart(), behind

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return self.behind(x.mean(1))
        return self.behind(self.total(x, mask)) / mask.sum(1, keepdim=True)


class MeanUpToSize(MeanInTwo):
    """A sum, of which a norm takes the size."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.behind(x.mean(1) if mask is None else self.total(x, mask))


class MeanOfHeads(nn.Module):
    """[B, 1, S] and [B, 1, 1, S] too."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        keep = mask.reshape(len(x), -1, 1).to(x)
        return torch.stack((x, x), 1).mul(keep[:, None]).sum(2).mean(1) / keep.sum(1)


class FirstWithoutAMask(nn.Module):
    """The first token where it is not told what is padding."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x[:, 0] if mask is None else (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


HEALTHY = {
    "a mean": lambda: Sentence(Pool()),
    "a sum in both": lambda: Sentence(SumPool()),
    "a sum": lambda: Sentence(Readout()),
    "a way that is a sum": lambda: Sentence(Pooling("sum")),
    "a square root": lambda: Sentence(BySquareRoot()),
    "attention": lambda: Sentence(Attending()),
    "the largest": lambda: Sentence(Largest()),
    "the first": lambda: Sentence(MeanOfFirst()),
    "a mean and a sum": lambda: Sentence(MeanAndSum()),
    "a sum and how many": lambda: Sentence(MeanElsewhere()),
    "a sum with a loss": lambda: Sentence(SumWithALoss()),
    "a mean in two": lambda: Sentence(MeanInTwo(nn.Identity())),
    "a mean up to its size": lambda: Sentence(MeanUpToSize(nn.LayerNorm(WIDTH))),
    "heads": lambda: Sentence(MeanOfHeads()),
    "one query": lambda: OfOneQuery(MeanOfHeads()),
    "heads by their mask": lambda: OfHeads(MeanOfHeads()),
    "the first without a mask": lambda: Sentence(FirstWithoutAMask()),
    "its own forward": lambda: Whole(True),
    "its own mask of one query": lambda: OfOneMask(True),
}


class KeyMasked(nn.Module):
    """Attention under a mask of keys, of the shape that it is asked for."""

    def __init__(self, num_axes: int) -> None:
        super().__init__()
        self.layer, self.num_axes = nn.Linear(WIDTH, WIDTH), num_axes

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        scores = self.layer(x) @ x.mT
        if padding_mask is not None:
            keys = padding_mask if self.num_axes == 3 else padding_mask[:, 0]
            scores = scores.masked_fill(keys, torch.finfo(x.dtype).min)
        return x + scores.softmax(-1) @ x


def adapted(make: Callable[[], nn.Module]) -> Subject:
    return adapt(
        SubjectRequest(spec="tests:make", input="embeddings", width=WIDTH, explore=True, lengths=(64, 16)), make
    )


@pytest.mark.parametrize("num_axes", [3, 4])
def test_a_mask_with_an_axis_for_queries_is_found_to_mask_padding(num_axes: int) -> None:
    subject = adapted(lambda: KeyMasked(num_axes))
    shape = "[B, 1, S]" if num_axes == 3 else "[B, 1, 1, S]"
    assert f"padding is masked by forward(x, padding_mask=...), true for padding, as {shape}" in subject.notes
    assert run_check(registry.load("FWD226"), subject).verdict is Verdict.PASS


def examined(name: str, of: dict) -> Result:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return of[name]()

    return run_check(registry.load("FWD226"), adapted(make))


@pytest.mark.parametrize("name", FAULTY)
def test_a_sum_under_a_mask_is_found(name: str) -> None:
    result = examined(name, FAULTY)
    (finding,) = result.findings
    assert "under a mask that hides nothing" in finding.message, result
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), result


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_by_its_mask_passes(name: str) -> None:
    result = examined(name, HEALTHY)
    assert result.verdict is Verdict.PASS or "offers no way to mask padding" in result.reason, result
