"""Blocks whose parts add to other streams are found where one does; the usual ways to norm and add are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class RootMeanSquareNorm(nn.Module):
    """Written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


class Feed(nn.Module):
    def __init__(self, adds: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.adds = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), adds

    def forward(self, x: Tensor) -> Tensor:
        made = self.down(self.up(x).relu())
        return x + made if self.adds else made


class Block(nn.Module):
    """Norms before each part, and adds to the stream."""

    def __init__(self, norm: Callable[[], nn.Module] = RootMeanSquareNorm, adds: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.third = norm(), norm(), norm()
        self.attend, self.feed, self.drop = Attend(), Feed(adds), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.first(x)))
        return x + self.drop(self.feed(self.second(x)))


class NormsTheStream(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.attend(x)  # here
        return x + self.feed(self.second(x))


class After(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attend(x))
        return self.second(x + self.feed(x))


class AfterAndBefore(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attend(x))
        return x + self.feed(self.second(x))


class Beside(Block):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        return x + self.attend(normed) + self.feed(normed)


class Around(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.second(self.attend(self.first(x)))
        return x + self.feed(self.third(x))


class AllNormed(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.attend(x)
        x = self.second(x)
        return x + self.feed(x)


class Shared(Block):
    """The branch of attention mixes neighbours of its normed input first, and adds them to it."""

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        normed = normed + self.feed(normed)
        x = x + self.attend(normed)
        return x + self.feed(self.second(x))


class BeforeThenAfter(Block):
    """One part adds to the stream, and the other to what its norm gives, which ends the block."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        x = self.second(x)
        return x + self.feed(x)


class Adapted(Block):
    """Norms behind each part, and an adapter that norms by itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attend(x))
        x = x + self.feed(self.third(x))
        return self.second(x + self.feed(x))


class NormalizedLinear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


class Deep(Block):
    """What is named after a norm is a layer."""

    def __init__(self) -> None:
        super().__init__(NormalizedLinear)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.feed(x)
        return x + self.feed(self.second(x))


class NormTracker(nn.Module):
    """Gives back what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.norm() >= 0
        return x


class Tracked(Block):
    def __init__(self) -> None:
        super().__init__(NormTracker)


class Stack(nn.Module):
    def __init__(self, make: Callable[[], nn.Module], number: int = 2) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(make() for _ in range(number)), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Loop(nn.Module):
    """The parts of two blocks lie in lists, and the model runs them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RootMeanSquareNorm() for _ in range(4))
        self.parts = nn.ModuleList((Attend(), Feed(), Attend(), Feed()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(2):
            first, second = self.norms[2 * layer : 2 * layer + 2]
            x = first(x)
            x = x + self.parts[2 * layer](x)  # here
            x = x + self.parts[2 * layer + 1](second(x))
        return x


class Again(Stack):
    """One block, which is run twice."""

    def __init__(self) -> None:
        super().__init__(NormsTheStream, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


class WayIn(Stack):
    """What is normed and mixed once before the blocks is no part of them."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.first, self.mix = nn.LayerNorm(WIDTH), Attend()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return super().forward(x + self.mix(x))


_SILENT = [
    *(Block, After, AfterAndBefore, Beside, Around, AllNormed),
    *(Shared, BeforeThenAfter, Adapted, Deep, Tracked, lambda: Block(adds=True)),
]


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD254"), small_subject(make, width=WIDTH, max_length=80))


@pytest.mark.parametrize("norm", [RootMeanSquareNorm, lambda: nn.LayerNorm(WIDTH)], ids=["own", "torch"])
def test_a_part_that_adds_to_the_normed_stream_is_found(norm: Callable[[], nn.Module]) -> None:
    (finding,) = examined(lambda: Stack(lambda: NormsTheStream(norm))).findings
    assert "a part of blocks.0 adds what it makes to what a norm makes of the stream" in finding.message
    assert finding.message.endswith("the next goes on, adding to the stream itself; so does 1 more")
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [Loop, Again])
def test_parts_that_one_module_runs_in_turn_are_looked_at_as_blocks_are(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", _SILENT)
def test_blocks_whose_parts_add_alike_are_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(lambda: Stack(make))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("make", [WayIn, lambda: Stack(NormsTheStream, 1)], ids=["way in", "one"])
def test_what_happens_once_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
