"""A head that begins as a copy of an embedding is found at the line that copies, unless two are wanted."""

import copy
import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WORDS, DIM = 32, 8


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.embed(ids))
        return output


class Clones(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone())  # HERE


class ClonesTied(Base):
    def __init__(self) -> None:
        super().__init__()
        # weight tying: a copy would be another matrix
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone())  # HERE


class CopiesData(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight.data.copy_(self.embed.weight.data)  # HERE


class SetsData(Base):
    def __init__(self) -> None:
        super().__init__()
        self.embed.weight.data = self.head.weight.data.clone()  # HERE


class CopiesDeep(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = copy.deepcopy(self.embed.weight)  # HERE


class CopiesInAMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.tie_weights()

    def tie_weights(self) -> None:
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)  # HERE


class CopiesWhereToTie(Base):
    def __init__(self, tie_embeddings: bool = True) -> None:
        super().__init__()
        if tie_embeddings:
            self.head.weight = nn.Parameter(self.embed.weight.clone())  # HERE


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Clones()

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.body(ids)
        return output


class Tied(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


class SharesData(Base):
    """Two parameters in one memory: of GRD211."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.data = self.embed.weight.data


class SaysSo(Base):
    def __init__(self) -> None:
        super().__init__()
        # the head starts as a copy of the embedding
        self.head.weight = nn.Parameter(self.embed.weight.clone())


class SaysUntied(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone())  # untied


class SaysNotShared(Base):
    def __init__(self) -> None:
        super().__init__()
        # equal at first, but not shared
        self.head.weight = nn.Parameter(self.embed.weight.clone())


class Documented(Base):
    """Its head is initialised from the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone())


class NamedSo(Base):
    def __init__(self) -> None:
        super().__init__()
        self.init_head_from_embedding()

    def init_head_from_embedding(self) -> None:
        self.head.weight.data.copy_(self.embed.weight.data)


class IsNotToTie(Base):
    def __init__(self, tie_embeddings: bool = False) -> None:
        super().__init__()
        if tie_embeddings:
            self.head.weight = self.embed.weight
        else:
            self.head.weight = nn.Parameter(self.embed.weight.clone())


class FrozenHead(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone(), requires_grad=False)


class FrozenTable(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone())
        self.embed.weight.requires_grad_(False)


class ChangedSince(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.clone() * 0.5)


class OneSeed(Base):
    """Each is drawn from a generator of its own, of one seed."""

    def __init__(self) -> None:
        super().__init__()
        for each in (self.embed, self.head):
            nn.init.normal_(each.weight, generator=torch.Generator().manual_seed(1))


class Constant(Base):
    def __init__(self) -> None:
        super().__init__()
        nn.init.ones_(self.embed.weight)
        self.head.weight.data.copy_(self.embed.weight.data)


class Loaded(Base):
    """From a checkpoint that has both, of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        matrix = torch.randn(WORDS, DIM)
        self.load_state_dict({"embed.weight": matrix, "head.weight": matrix})


class FromOneMatrix(Base):
    """Each is filled with vectors that come from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        matrix = torch.randn(WORDS, DIM)
        self.embed.weight.data.copy_(matrix)
        self.head.weight.data.copy_(matrix)


class WithATeacher(nn.Module):
    """A tied model and a copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = Tied()
        self.teacher = copy.deepcopy(self.student)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.student(ids) + self.teacher(ids)
        return output


class CopiedLayers(Base):
    """Layers that begin equal, and further heads of one that is tied."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(WORDS, WORDS)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))
        self.head.weight = self.embed.weight
        self.further = copy.deepcopy(self.head)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        output: Tensor = self.layers[1](self.layers[0](self.head(hidden))) + self.further(hidden)
        return output


FAULTY = [Clones, ClonesTied, CopiesData, SetsData, CopiesDeep, CopiesInAMethod, CopiesWhereToTie, Inner]
HEALTHY: list[Callable[[], nn.Module]] = [
    *(Base, Tied, SharesData, SaysSo, SaysUntied, SaysNotShared, Documented, NamedSo, IsNotToTie, FrozenHead),
    *(FrozenTable, ChangedSince, OneSeed, Constant, Loaded, FromOneMatrix, WithATeacher),
]


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD227"), small_subject(make, width=WORDS, input="tokens"))


@pytest.mark.parametrize("make", FAULTY)
def test_a_head_that_begins_as_a_copy_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "begins as a copy of" in finding.message
    assert "head.weight" in finding.message
    assert "# HERE" in linecache.getline(finding.where.file, finding.where.line)
    assert finding.where.module == ("body" if make is Inner else "")


@pytest.mark.parametrize("make", HEALTHY)
def test_what_is_shared_or_meant_as_two_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


def test_further_heads_of_one_that_is_tied_are_silent() -> None:
    assert examined(CopiedLayers).findings == ()
