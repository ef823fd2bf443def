"""A mask of tokens that changes nothing is found where a part of the module wants one, and nowhere else."""

import inspect
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

DIM = 8


class Attention(nn.Module):
    """Of all tokens that a mask shows; `keeps` is what becomes of the mask."""

    def __init__(self, keeps: Callable[[Tensor], Tensor] = lambda mask: mask) -> None:
        super().__init__()
        self.qkv, self.keeps = nn.Linear(DIM, 3 * DIM), keeps

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / DIM**0.5
        if mask is not None:
            scores = scores.masked_fill(~self.keeps(mask.bool())[:, None], torch.finfo(scores.dtype).min)
        return x + scores.softmax(-1) @ v


class HandsOn(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x, mask)


class KeepsToItself(HandsOn):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x)


class SaysSo(HandsOn):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` is there for callers that have one, and unused."""
        return self.attention(x)


class OfAFamily(nn.Module):
    """Another way to attend, with the arguments of its kind, that knows no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + (x @ self.mix(x).mT).relu() @ x


class OfMeans(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) + x.mean(1, keepdim=True)


class ForTheLossAlone(HandsOn):
    def forward(self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        y = self.attention(x)
        return y if labels is None or mask is None else ((y - labels)[mask]).square().mean()


class InTraining(HandsOn):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x if mask is None or not self.training else x.masked_fill(mask[..., None], 0.0))


def subject(make: Callable[[], nn.Module]) -> Subject:
    request = SubjectRequest(
        spec="x:y", input="embeddings", width=DIM, lengths=(16,), explore=True, declared=("bidirectional",)
    )
    return adapt(request, make)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD226"), subject(make))


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "not handed on": lambda: KeepsToItself(Attention()),
}
HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "handed on and undone": lambda: HandsOn(Attention(torch.ones_like)),
    "for training alone": lambda: InTraining(Attention()),
    "said to be unused": lambda: SaysSo(Attention()),
    "read by another in its place": OfAFamily,
    "wanted by nobody": lambda: KeepsToItself(OfMeans()),
    "for the loss alone": lambda: ForTheLossAlone(OfMeans()),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_mask_that_changes_nothing_is_found_where_it_is_taken(name: str) -> None:
    make = FAULTY[name]
    (finding,) = examined(make).findings
    assert finding.message.startswith("padding is read, and the mask changes nothing")
    assert finding.where.line == inspect.getsourcelines(type(make()).forward)[1]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_mask_that_is_not_meant_for_attention_is_left_alone(name: str) -> None:
    assert not subject(HEALTHY[name]).offers("padded")


def test_a_mask_that_is_handed_on_is_silent() -> None:
    result = examined(lambda: HandsOn(Attention()))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
