"""Arguments that evaluation drops by chance or rounds away are found at their line; chance that is meant is silent."""

import linecache
import random
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

DIM, CLASSES = 8, 4


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    return run_check(registry.load("FWD270"), small_subject(make, width=DIM, max_length=64, **more))


class Labelled(nn.Module):
    """A layer beside a table of classes and of none, in which labels are dropped in training alone."""

    def __init__(self, share: float = 0.1) -> None:
        super().__init__()
        self.layer, self.table, self.share = nn.Linear(DIM, DIM), nn.Embedding(CLASSES + 1, DIM), share

    def dropped(self, y: Tensor) -> Tensor:
        return torch.where(torch.rand(y.shape) < self.share, CLASSES, y) if self.training else y

    def vectors(self, y: Tensor) -> Tensor:
        return self.table(self.dropped(y))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = torch.full((len(x),), CLASSES) if y is None else y
        return self.layer(x) + self.vectors(y)[:, None]


class DroppedAlways(Labelled):
    def dropped(self, y: Tensor) -> Tensor:
        return torch.where(torch.rand(y.shape) < self.share, CLASSES, y)  # here


class DroppedByBernoulli(Labelled):
    def dropped(self, y: Tensor) -> Tensor:
        kept = torch.full(y.shape, 1 - self.share).bernoulli()  # here
        return torch.where(kept.bool(), y, CLASSES)


class DroppedAllAtOnce(Labelled):
    def dropped(self, y: Tensor) -> Tensor:
        return torch.full_like(y, CLASSES) if random.random() < self.share else y  # here


class DroppedVectors(Labelled):
    def vectors(self, y: Tensor) -> Tensor:
        vectors: Tensor = self.table(y)
        return vectors if (y == CLASSES).all() else F.dropout(vectors, self.share)  # here


class NoisyVectors(Labelled):
    def vectors(self, y: Tensor) -> Tensor:
        vectors: Tensor = self.table(y)
        return vectors if (y == CLASSES).all() else vectors + 0.1 * torch.randn_like(vectors)  # here


class Conditioned(nn.Module):
    """A layer beside a condition [B, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.to_shift = nn.Linear(DIM, DIM), nn.Linear(6, DIM)

    def kept(self, cond: Tensor) -> Tensor:
        return cond

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        y: Tensor = self.layer(x)
        return y if cond is None else y + self.to_shift(self.kept(cond))[:, None]


class ConditionDropped(Conditioned):
    def kept(self, cond: Tensor) -> Tensor:
        return cond * (torch.rand(len(cond), 1) > 0.2)  # here


class Attending(nn.Module):
    """Cross-attention to a context [B, L, D]."""

    def __init__(self, dropping: bool = False) -> None:
        super().__init__()
        self.q, self.kv, self.dropping = nn.Linear(DIM, DIM), nn.Linear(6, DIM), dropping

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            return self.q(x)
        if self.dropping:
            context = context * (torch.rand(context.shape[:2]) > 0.3)[..., None]  # here
        k = self.kv(context)
        return x + F.scaled_dot_product_attention(self.q(x), k, k)


class Segmented(nn.Module):
    """Segments, of which some are taken for the other by chance."""

    def __init__(self, chance: float = 0.0) -> None:
        super().__init__()
        self.layer, self.table, self.chance = nn.Linear(DIM, DIM), nn.Embedding(2, DIM), chance

    def forward(self, x: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        if token_type_ids is None:
            return self.layer(x)
        ids = token_type_ids
        if self.chance:
            ids = torch.where(torch.rand(ids.shape) < self.chance, 1 - ids, ids)  # here
        return self.layer(x) + self.table(ids)


BY_CHANCE = {
    "labels": (DroppedAlways, "y"),
    "labels, half": (lambda: DroppedAlways(0.5), "y"),
    "bernoulli": (DroppedByBernoulli, "y"),
    "all at once": (lambda: DroppedAllAtOnce(0.5), "y"),
    "dropout": (DroppedVectors, "y"),
    "noise": (NoisyVectors, "y"),
    "condition": (ConditionDropped, "cond"),
    "context": (lambda: Attending(True), "context"),
    "segments": (lambda: Segmented(0.1), "token_type_ids"),
}


@pytest.mark.parametrize(("make", "name"), BY_CHANCE.values(), ids=BY_CHANCE)
def test_chance_in_evaluation_is_found(make: Callable[[], nn.Module], name: str) -> None:
    (finding,) = examined(make).findings
    assert f"with the argument {name} two equal calls in eval() differ" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)


class GivenAShare(DroppedAlways):
    """Its callers say how much is dropped."""

    def forward(self, x: Tensor, y: Tensor | None = None, cond_drop_prob: float | None = None) -> Tensor:
        self.share = 0.5 if cond_drop_prob is None else cond_drop_prob
        return super().forward(x, y)


class Noised(Conditioned):
    """Noise of a time is put on its tokens."""

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return self.layer(x if t is None else x + t.reshape(-1, 1, 1) * torch.randn_like(x))


class Masked(Conditioned):
    """Tokens are masked by as much as a time says, as masked diffusion does."""

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return self.layer(x if t is None else x * (torch.rand(x.shape[:2]) > t[:, None])[..., None])


class Sampled(Labelled):
    """A latent is sampled from what a posterior says of input and label."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = self.layer(x)
        if y is None:
            return h
        mean, size = h.mean(1), (h.mean(1) + self.table(y)).exp()
        return h + (mean + size * torch.randn_like(size))[:, None]


class DrawsInVain(Labelled):
    """What is drawn chooses nothing."""

    def dropped(self, y: Tensor) -> Tensor:
        return torch.where(torch.rand(y.shape) < 0, CLASSES, y)


class Gumbel(Labelled):
    def vectors(self, y: Tensor) -> Tensor:
        return F.gumbel_softmax(self.table(y), tau=1.0)


class ByTime(nn.Module):
    """A layer that is shifted by sinusoids of a time."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.to_shift = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.register_buffer("freqs", torch.logspace(0, -2, DIM // 2), persistent=False)

    def whole(self, t: Tensor) -> Tensor:
        return t.float()

    def vectors(self, t: Tensor) -> Tensor:
        angle = self.whole(t)[:, None] * self.scale * self.freqs
        return torch.cat((angle.cos(), angle.sin()), -1)

    def shifted(self, x: Tensor, t: Tensor | None) -> Tensor:
        t = torch.zeros(len(x)) if t is None else t
        return self.layer(x) + self.to_shift(self.vectors(t).to(x))[:, None]

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return self.shifted(x, t)


class Cast(ByTime):
    scale = 1000.0

    def whole(self, t: Tensor) -> Tensor:
        return t.long()  # here


class CastToInt32(Cast):
    def whole(self, t: Tensor) -> Tensor:
        return t.to(torch.int32).float()  # here


class Floored(Cast):
    def whole(self, t: Tensor) -> Tensor:
        return t.floor()  # here


class Written(ByTime):
    """A layer that is shifted by a continuous time, from 0 to 1."""

    def whole(self, t: Tensor) -> Tensor:
        return t.int()  # here


class OfSigma(ByTime):
    def whole(self, t: Tensor) -> Tensor:
        return t.long()  # here

    def forward(self, x: Tensor, sigma: Tensor | None = None) -> Tensor:
        return self.shifted(x, sigma)


class OneForAll(Cast):
    """One time for all rows."""

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        assert t is None or t.ndim == 0
        return self.shifted(x, None if t is None else t.expand(len(x)))


CASTS = {"long": Cast, "int32": CastToInt32, "floor": Floored, "written": Written, "sigma": OfSigma, "one": OneForAll}


@pytest.mark.parametrize("make", CASTS.values(), ids=CASTS)
def test_a_time_that_is_rounded_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "between 0 and 1 gives the same output" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)


class Counted(ByTime):
    """Steps, cast to be on the safe side."""

    def whole(self, t: Tensor) -> Tensor:
        return t.long()


class LookedUp(ByTime):
    """A table of sinusoids, by step."""

    scale = 1000.0

    def vectors(self, t: Tensor) -> Tensor:
        return super().vectors(torch.arange(10))[t.long()]


class LearntTable(Labelled):
    """Steps of a noise schedule in [0, 1], each with a vector."""

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        t = torch.zeros(len(x)) if t is None else t
        return self.layer(x) + self.table(t.long().clamp(max=CLASSES))[:, None]


class Quantised(Cast):
    """A time in [0, 1], in a thousand steps."""

    def whole(self, t: Tensor) -> Tensor:
        return (t * 1000).long()


class Clamped(Cast):
    """A continuous time of at least 1."""

    def whole(self, t: Tensor) -> Tensor:
        return t.clamp(min=1)


class Ignored(Cast):
    """A time in [0, 1] that is not read."""

    def whole(self, t: Tensor) -> Tensor:
        return t.long() * 0


HEALTHY = {
    "labels": Labelled,
    "noised": Noised,
    "masked": Masked,
    "sampled": Sampled,
    "in vain": DrawsInVain,
    "gumbel": Gumbel,
    "condition": Conditioned,
    "context": Attending,
    "segments": Segmented,
    "time": ByTime,
    "counted": Counted,
    "looked up": LookedUp,
    "learnt table": LearntTable,
    "quantised": Quantised,
    "clamped": Clamped,
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_healthy_arguments_are_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.verdict is Verdict.PASS


def test_a_forward_that_is_given_a_share_to_drop_is_not_examined() -> None:
    assert "no optional argument" in examined(GivenAShare).reason


def test_chance_that_is_declared_is_meant() -> None:
    assert examined(DroppedAlways, spec=("stochastic",)).findings == ()


def test_without_an_argument_that_it_takes_it_does_not_apply() -> None:
    assert "no optional argument" in examined(lambda: nn.Linear(DIM, DIM)).reason
