"""Writes by an index that holds a place several times, of which all but one are lost (FWD280)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, KINDS = 8, 5


class Grouped(nn.Module):
    """Tokens of five kinds, of which a method of its own makes something for each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.head, self.drop = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.items(ids)
        return self.head(x + self.of_kinds(ids % KINDS, x))

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        """[B, S, D], of the kinds [B, S] and the tokens."""
        rows = torch.arange(len(x))[:, None].expand_as(kinds)
        return self.grouped(rows, kinds, x)[rows, kinds]

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        """[B, kinds, D]."""
        return self.empty(x).index_put_((rows, kinds), x, accumulate=True)

    def empty(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), KINDS, WIDTH)


class AddedInPlace(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        sums = self.empty(x)
        sums[rows, kinds] += x  # here
        return sums


class AddedBesides(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        sums = self.empty(x)
        sums[rows, kinds] = sums[rows, kinds] - 2 * x  # here
        return sums


class PutWithoutAdding(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        return self.empty(x).index_put((rows, kinds), x)  # here


class Scattered(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        return self.empty(x).scatter_(1, kinds[..., None].expand_as(x), x)  # here


class ScatteredOnWhatIsThere(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        where, sums = kinds[..., None].expand_as(x), self.empty(x)
        return sums.scatter(dim=1, index=where, src=sums.gather(1, where) + x)  # here


class Copied(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        flat = self.empty(x).flatten(0, 1)
        return flat.index_copy_(0, (rows * KINDS + kinds).flatten(), x.flatten(0, 1)).view(-1, KINDS, WIDTH)  # here


class Points(Grouped):
    """What is copied from the input, by how much each token counts."""

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        shares = self.head(x)[..., 0].softmax(-1)
        copied = shares.new_zeros(len(x), KINDS).scatter_(1, kinds, shares)  # here
        return (copied @ self.items.weight[:KINDS])[:, None]


class CountedByAdding(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        numbers = torch.zeros(len(x), KINDS, dtype=torch.int64)
        numbers[rows, kinds] += 1  # here
        return super().grouped(rows, kinds, x) / numbers.clamp(min=1)[..., None]


class CountedByOnes(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        edge_counts = x.new_zeros(len(x), KINDS, KINDS)
        edge_counts.index_put_((rows[:, 1:], kinds[:, :-1], kinds[:, 1:]), torch.ones(()))  # here
        return (edge_counts / edge_counts.sum(2, keepdim=True).clamp(min=1)) @ super().grouped(rows, kinds, x)


class Codes(Grouped):
    """Sums of a codebook, which training moves."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Tensor
        self.register_buffer("sums", torch.zeros(KINDS, WIDTH))

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.sums[kinds] = self.sums[kinds] * 0.9 + x * 0.1  # here
        return torch.zeros_like(x)


class MarkedTwice(Grouped):
    """Which kind follows which: once is enough."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        adjacency = x.new_zeros(len(x), KINDS, KINDS)
        adjacency[rows[:, 1:], kinds[:, :-1], kinds[:, 1:]] = 1.0
        shares = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        return shares @ super().grouped(rows, kinds, x)


class SameValues(Grouped):
    """Each kind is given what belongs to it, but for what dropout makes of it."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        return self.empty(x).index_put((rows, kinds), self.drop(self.items(kinds)))


class UnreadRow(Grouped):
    """What is too much goes to a row that nobody reads."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        same = kinds[:, :, None] == kinds[:, None]
        is_first = ~same.tril(-1).any(-1)
        slots = x.new_zeros(len(x), KINDS + 1, WIDTH)
        slots[rows, torch.where(is_first, kinds, KINDS)] = x
        return slots[:, :KINDS]


class Largest(Grouped):
    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        return self.empty(x).scatter_reduce(1, kinds[..., None].expand_as(x), x, "amax")


class Once(Grouped):
    """A permutation, and the best of the tokens."""

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        order = kinds.argsort(1)
        rows = torch.arange(len(x))[:, None]
        sorted_back = torch.zeros_like(x)
        sorted_back[rows, order] = self.head(x[rows, order])
        best, where = x.topk(3, dim=-1)
        return sorted_back + torch.zeros_like(x).scatter(-1, where, best.softmax(-1))


class Penalised(Grouped):
    """A token that was there is less likely, however often it was."""

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        scores = self.head(x)
        rows, columns = torch.arange(len(x))[:, None, None], torch.arange(x.shape[1])[None, :, None]
        scores[rows, columns, kinds[:, None]] -= 0.5
        return scores


class LastOfEach(Grouped):
    """The state that each kind was left in."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        last_state = self.empty(x)
        last_state[rows, kinds] = x
        return last_state


class Ring(Grouped):
    """Of few places, in which what came first is written over."""

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        buf = x.new_zeros(len(x), 4, WIDTH)
        buf[:, torch.arange(x.shape[1]) % 4] = x
        return buf.mean(1, keepdim=True)


class Shuffled(Grouped):
    """Some tokens, at random, in the place of others."""

    def of_kinds(self, kinds: Tensor, x: Tensor) -> Tensor:
        x, some = x.clone(), torch.randint(x.shape[1], (x.shape[1],))
        x[:, some] = x[:, some.roll(1)]
        return x


class Numbered(Grouped):
    """Where each kind came last, by the number of the place."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        places = torch.zeros(len(x), KINDS, dtype=torch.int64)
        places[rows, kinds] = torch.arange(x.shape[1])
        return x[torch.arange(len(x))[:, None], places]


class LookedAt(Grouped):
    """What is kept to be looked at, and read by nothing."""

    def grouped(self, rows: Tensor, kinds: Tensor, x: Tensor) -> Tensor:
        seen = self.empty(x)
        seen[rows, kinds] += x
        self.largest = float(seen.detach().max())
        return super().grouped(rows, kinds, x)


def examined(make: Callable[[], nn.Module], **given: object) -> Result:
    return run_check(registry.load("FWD280"), small_subject(make, **{"width": 64, "input": "tokens", **given}))


FAULTY = [
    *(AddedInPlace, AddedBesides, PutWithoutAdding, Scattered, ScatteredOnWhatIsThere, Copied, Points),
    *(CountedByAdding, CountedByOnes, Codes),
]


@pytest.mark.parametrize("make", FAULTY)
def test_values_that_are_lost_are_found_at_the_write(make: type[nn.Module]) -> None:
    result = examined(make)
    (finding,) = result.findings
    assert is_marked(finding.where.file, finding.where.line)
    assert "are lost" in finding.message


HEALTHY = [
    *(
        Grouped,
        MarkedTwice,
        SameValues,
        UnreadRow,
        Largest,
        Once,
        Penalised,
        LastOfEach,
        Ring,
        Shuffled,
        Numbered,
        LookedAt,
    ),
]


@pytest.mark.parametrize("make", HEALTHY)
def test_what_is_meant_to_be_written_once_is_silent(make: type[nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_so_are_those_of_a_training_step() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        output = module(x)
        centres = torch.zeros(KINDS, WIDTH)
        centres[x % KINDS] += output  # here
        loss = functional.mse_loss(output, centres[x % KINDS])
        loss.backward()
        optimizer.step()
        return loss

    (finding,) = examined(Grouped, train_step=step).findings
    assert is_marked(finding.where.file, finding.where.line)
    assert "in train_step" in finding.message


def test_the_module_is_left_as_it_was() -> None:
    made: list[Codes] = []

    def make() -> nn.Module:
        made.append(Codes())
        return made[-1]

    examined(make)
    assert all(bool((each.sums == 0).all()) for each in made)
