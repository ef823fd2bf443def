"""A mask that all rows of a batch share, and that is another for each token, is found; every usual mask is silent."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Dropped(nn.Module):
    """A layer on either side of what a subclass drops."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(1, 2048, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        return self.after(self.dropped(h) if self.training else h)

    def dropped(self, x: Tensor) -> Tensor:
        return x


class Locked(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        mask = x.data.new(1, x.size(1), x.size(2)).bernoulli_(0.5)  # here
        return mask.div_(0.5).expand_as(x) * x


class OfTokens(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x.masked_fill(torch.rand(x.shape[1], 1) < 0.1, 0)  # here


class TurnedAround(Dropped):
    """Time first inside."""

    def dropped(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        kept = functional.dropout(torch.ones(x.size(0), 1, x.size(2)), 0.3)  # here
        return (x * kept).transpose(0, 1)


class OfChannelsFirst(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        x = x.mT
        kept = torch.bernoulli(torch.full(x.shape[1:], 0.8)).bool()  # here
        return torch.where(kept, x, torch.zeros_like(x)).mT


class InPlace(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, torch.rand(x.shape[1]) < 0.2] = 0  # here
        return x


class OfEachHead(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        scale = torch.rand_like(heads[:1]).gt(0.4).to(x) / 0.6  # here
        return (heads * scale).transpose(1, 2).flatten(2)


def drawn_mask(shape: tuple[int, ...]) -> Tensor:
    """Of zeros and ones."""
    return (torch.rand(shape) < 0.7).float()


class FromAFunction(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * drawn_mask((1, *x.shape[1:]))  # here


class EveryTimestep(Dropped):
    """Samples a single mask of size (batch_size, embedding_dim) and applies it to every time step."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * functional.dropout(x.new_ones(x.shape[1:]), 0.5)  # here


class StepByStep(Dropped):
    """A recurrence, whose state loses the same features in all rows, and others at each step."""

    def dropped(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            kept = torch.rand(1, x.shape[2]) < 0.7  # here
            state = (state * kept + step).tanh()
            states.append(state)
        return torch.stack(states, 1)


class OneForEachRow(Dropped):
    """Draws one mask per sequence of the batch, the same for all of its tokens."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, *x.shape[1:]) < 0.5)  # here


class AlongTheSequence(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(0.5) * 2


class OfAllSteps(Dropped):
    """A recurrence, whose state loses the same features at all steps."""

    def dropped(self, x: Tensor) -> Tensor:
        state, states, kept = torch.zeros_like(x[:, 0]), [], torch.rand(1, x.shape[2]) < 0.7
        for step in x.unbind(1):
            state = (state * kept + step).tanh()
            states.append(state)
        return torch.stack(states, 1)


class StepsOfRows(Dropped):
    """A recurrence, whose state loses others in each row and at each step."""

    def dropped(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            state = (state * (torch.rand_like(state) < 0.7) + step).tanh()
            states.append(state)
        return torch.stack(states, 1)


class SkippedSteps(Dropped):
    """A recurrence that leaves whole steps out."""

    def dropped(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            state = (state + step * (torch.rand(()) < 0.7)).tanh()
            states.append(state)
        return torch.stack(states, 1)


class AllOfIt(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.4)


class Words(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(*x.shape[:2], 1) < 0.7)


class OfATable(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x + functional.dropout(self.table[:, : x.shape[1]], 0.5)


class OfATableForEachRow(Dropped):
    """The table is laid out for all rows before."""

    def dropped(self, x: Tensor) -> Tensor:
        table = self.table[:, : x.shape[1]].expand_as(x)
        return x + table * (torch.rand(1, x.shape[1], 1) < 0.5)


class OfWeights(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return functional.linear(x, functional.dropout(self.before.weight, 0.5))


class OfDepth(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x + self.before(x) * (torch.rand(()) < 0.5)


class OfFeatures(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, 1, x.shape[2]) < 0.5)


class OfLayers(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return self.before(x) if float(torch.rand(())) < 0.5 else x


class SpanAugment(Dropped):
    """A stretch of time, for all."""

    def dropped(self, x: Tensor) -> Tensor:
        places, first = torch.arange(x.shape[1]), torch.randint(40, (1,))
        return x.masked_fill(((places >= first) & (places < first + 5))[:, None], 0.0)


class FewKept(Dropped):
    """So many tokens as are asked for."""

    def dropped(self, x: Tensor) -> Tensor:
        kept = torch.zeros(x.shape[1], 1)
        kept[torch.randperm(x.shape[1])[:20]] = 1
        return x * kept


class Documented(Dropped):
    """The same tokens are left out of all rows of the batch, so that these can be cut."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, x.shape[1], 1) < 0.5)


class SameWords(Dropped):
    """Leaves the same words out of each sequence."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, x.shape[1], 1) < 0.5)


class Remarked(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        # shared across the batch, which is faster
        kept = torch.rand(1, x.shape[1], 1) < 0.5
        return x * kept


class MaskedAutoencoder(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, x.shape[1], 1) < 0.25)


class GraphConv(Dropped):
    """Nodes of one graph."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape[1], 1) < 0.75)


class Corrupted(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return self.corrupt(x)

    def corrupt(self, x: Tensor) -> Tensor:
        return x * (torch.rand(1, x.shape[1], 1) < 0.75)


class Noise(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x + torch.randn(1, *x.shape[1:]) * (torch.rand(1, x.shape[1], 1) < 0.5)


class Scaled(Dropped):
    """By normal numbers, none of which is zero."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * torch.randn(1, *x.shape[1:]))


class OfScores(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        scores = x @ x.mT
        hidden = torch.rand(1, *scores.shape[1:]) < 0.1
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x


class OfOneRow(Dropped):
    """Row by row."""

    def dropped(self, x: Tensor) -> Tensor:
        return torch.cat([row[None] * (torch.rand(1, row.shape[0], 1) < 0.5) for row in x])


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD278"), small_subject(make, width=WIDTH, max_length=128))


FAULTY = (
    Locked,
    OfTokens,
    TurnedAround,
    OfChannelsFirst,
    InPlace,
    OfEachHead,
    FromAFunction,
    EveryTimestep,
    OneForEachRow,
)
HEALTHY = (
    *(
        AlongTheSequence,
        OfAllSteps,
        StepsOfRows,
        SkippedSteps,
        AllOfIt,
        Words,
        OfATable,
        OfATableForEachRow,
        OfWeights,
        OfDepth,
        OfFeatures,
        OfLayers,
    ),
    *(
        SpanAugment,
        FewKept,
        Documented,
        SameWords,
        Remarked,
        MaskedAutoencoder,
        GraphConv,
        Corrupted,
        Noise,
        Scaled,
        OfScores,
        OfOneRow,
    ),
)


@pytest.mark.parametrize("make", FAULTY)
def test_a_mask_of_all_rows_is_found(make: type[Dropped]) -> None:
    (finding,) = examined(make).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
    assert finding.where.function == "dropped"
    assert finding.where.line > make.dropped.__code__.co_firstlineno
    assert finding.where.line <= max(line for _, _, line in make.dropped.__code__.co_lines() if line)
    assert "drops the same values of all 7 rows of the batch" in finding.message


@pytest.mark.parametrize("make", HEALTHY)
def test_another_mask_is_silent(make: type[Dropped]) -> None:
    result = examined(make)
    assert (result.findings, result.notes) == ((), ())


def test_where_nothing_is_dropped_it_is_not_asked() -> None:
    assert examined(Dropped).verdict is Verdict.SKIP


class OneRowAlone(Locked):
    """Takes no batch."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != 1:
            raise ValueError("one row at a time")
        return super().forward(x)


def test_what_takes_one_row_alone_is_not_known() -> None:
    result = examined(OneRowAlone)
    assert (result.verdict, "one row at a time" in result.reason) == (Verdict.SKIP, True)
