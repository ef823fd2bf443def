"""A mask of tokens is found to change nothing where the module attends and no part of it takes one."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, MEMORIES = 8, 3


class Weighs(nn.Module):
    """Attention by what a relu leaves of the scores, that takes no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.memory = nn.Parameter(torch.randn(MEMORIES, DIM))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k = torch.cat((self.memory.expand(len(x), -1, -1), k), 1)
        return x + relu(torch.einsum("bid,bjd->bij", q, k))[..., MEMORIES:] @ v


class OfLayers(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(parts or (Weighs(), Weighs()))

    def run(self, x: Tensor, *given: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *given)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class TakesAMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = OfLayers()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # here
        return self.inner(x)


class ShapesItAlone(TakesAMask):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # here
        if attention_mask is not None:
            attention_mask = attention_mask.bool()[:, None, None]
        return self.inner(x)


class ByItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # here
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + scaled_dot_product_attention(q, k, v)


class LeavesIt(Weighs):
    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + relu(q @ k.mT) @ v


class HandsItOn(OfLayers):
    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:  # here
        return self.run(x, pad_mask)


class SaidOfTheClass(TakesAMask):
    """Attention of whole sequences alone: the mask that others take is ignored."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inner(x)


class Asks(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError


class AskedFor(Asks):
    """Its base takes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OfLayers()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inner(x)


class OfEarlierTokens(TakesAMask):
    """What stands behind a row is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + relu(q @ k.mT).tril() @ v


class LeavesItCausally(Weighs):
    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + relu(q @ k.mT).tril() @ v


class HandedToEarlierTokens(HandsItOn):
    """What stands behind a row is never read, by parts that are given the mask."""

    def __init__(self) -> None:
        super().__init__(LeavesItCausally(), LeavesItCausally())


class OfEachToken(TakesAMask):
    """Products, though of the values of one token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        values = self.mix(x)[..., None]
        return x + (values @ values.mT).sum(-1)


class OfAState(TakesAMask):
    """A recurrence over all tokens, both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.rnn(x)[0]
        return y


def subject(make: Callable[[], nn.Module]) -> Subject:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return make()

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), explore=True)
    return adapt(request, seeded)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD226"), subject(make))


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "never read": TakesAMask,
    "given a shape and no more": ShapesItAlone,
    "of what has no parts that attend": ByItself,
    "handed on to what leaves it": lambda: HandsItOn(LeavesIt(), LeavesIt()),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_mask_that_no_part_hears_of_is_found_at_the_forward_that_takes_it(name: str) -> None:
    make = FAULTY[name]
    (finding,) = examined(make).findings
    assert finding.message.startswith("padding is read, and the mask changes nothing")
    assert finding.where.line == inspect.getsourcelines(type(make()).forward)[1]


SILENT = [SaidOfTheClass, AskedFor, OfEarlierTokens, HandedToEarlierTokens, OfEachToken, OfAState]


@pytest.mark.parametrize("kind", SILENT)
def test_a_mask_that_nothing_asks_for_is_left_alone(kind: type[nn.Module]) -> None:
    assert not subject(kind).offers("padded")
