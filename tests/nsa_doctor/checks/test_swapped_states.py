"""A cell whose input and state are exchanged is found at the line of its call; one that goes on from itself passes."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    asked = {"width": DIM, "max_length": 64} | more
    return run_check(registry.load("FWD272"), small_subject(make, **asked))


def is_marked(result: Result) -> bool:
    (finding,) = result.findings
    return linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


class Cells(nn.Module):
    """What every module here has."""

    def __init__(self, kind: type[nn.Module] = nn.GRUCell) -> None:
        super().__init__()
        self.cell, self.other = kind(DIM, DIM), kind(DIM, DIM)
        self.layer, self.norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.first = nn.Parameter(torch.randn(2, DIM))


class Exchanged(Cells):
    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.cell(state, token)  # here
            states.append(state)
        return torch.stack(states, 1)


class ExchangedByName(Cells):
    def forward(self, x: Tensor) -> Tensor:
        states = [self.layer(x.mean(1)).tanh()]
        for t in range(x.shape[1]):
            states.append(self.cell(hx=self.layer(x[:, t]), input=states[-1]))  # here
        return torch.stack(states[1:], 1)


class ExchangedLong(Cells):
    """One whose state is two."""

    def __init__(self) -> None:
        super().__init__(nn.LSTMCell)

    def forward(self, x: Tensor) -> Tensor:
        h, c, states = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            h, c = self.cell(h, (token, c))  # here
            states.append(h)
        return torch.stack(states, 1)


class Slots(Cells):
    """Slots that attend to tokens, some times over (Locatello et al., 2020)."""

    def __init__(self, *, swapped: bool = False, with_maps: bool = False, rounds: int = 3) -> None:
        super().__init__()
        self.swapped, self.with_maps, self.rounds = swapped, with_maps, rounds

    def forward(self, x: Tensor) -> Tensor:
        slots = self.first.expand(len(x), -1, -1)
        for _ in range(self.rounds):
            weights = (self.layer(self.norm(slots)) @ x.mT).softmax(1) + 1e-8
            updates = (weights / weights.sum(-1, keepdim=True)) @ x
            one, other = (updates, slots) if not self.swapped else (slots, updates)
            slots = self.cell(one.reshape(-1, DIM), other.reshape(-1, DIM)).view_as(slots)  # here
            if self.with_maps:
                slots = slots + self.layer(self.norm(slots))
        return x + slots.mean(1, keepdim=True)


class OwnCell(nn.GRUCell):
    """A cell with a norm of its own."""

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """[B, D]."""
        return super().forward(x, h) * 0.9


@pytest.mark.parametrize(
    "make",
    [
        Exchanged,
        ExchangedByName,
        ExchangedLong,
        lambda: Slots(swapped=True),
        lambda: Slots(swapped=True, with_maps=True),
        lambda: Slots(swapped=True, rounds=6),
        lambda: Exchanged(nn.RNNCell),
        lambda: Exchanged(OwnCell),
    ],
)
def test_exchanged_arguments_are_found(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.verdict is Verdict.FAIL, result
    assert is_marked(result)


def test_the_cell_is_named() -> None:
    (finding,) = examined(lambda: nn.Sequential(nn.Linear(DIM, DIM), Exchanged())).findings
    assert (finding.where.module, finding.where.module_class) == ("1.cell", "GRUCell")
    assert (finding.evidence["num_swapped"], finding.evidence["num_calls"]) == (6, 7)


def test_tokens_are_looked_at_too() -> None:
    result = examined(lambda: nn.Sequential(nn.Embedding(11, DIM), Exchanged()), input="tokens", width=11)
    assert is_marked(result)


class Plain(Cells):
    """From token to token, in one of many ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            if self.way == "without a state" and not states:
                state = self.cell(token)
            elif self.way == "masked":
                kept = (token[:, :1] > 0).to(x)
                state = kept * self.cell(token, state) + (1 - kept) * state
            elif self.way == "some rows":
                rows = token[:, 0] > -0.5
                state = state.index_put((rows.nonzero()[:, 0],), self.cell(token[rows], state[rows]))
            elif self.way == "normalised":
                state = self.cell(token, self.norm(state))
            elif self.way == "detached":
                state = self.cell(token, state.detach())
            else:
                state = self.cell(token, state)
            states.append(state)
        return torch.stack(states, 1)


class Decoder(Cells):
    """One that reads its own answers."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        state, states = self.layer(x.mean(1)).tanh(), []
        given = torch.zeros_like(state)
        for token in x.unbind(1):
            if self.way == "what was read is added":
                given = state = self.cell(given, state + token)
            elif self.way == "normalised":
                given = state = self.cell(given, self.norm(state))
            elif self.way == "dropped":
                given = state = self.cell(given, nn.functional.dropout(state, 0.1))
            elif self.way == "mixed":
                given = state = self.cell(given, 0.5 * state + 0.5 * token)
            elif self.way == "mapped":
                given = state = self.cell(given, self.layer(state).tanh())
            elif self.way == "two cells":
                state = self.other(token, self.cell(given, state))
                given = self.layer(state)
            else:
                given = state = self.cell(given, state)
            states.append(state)
        return torch.stack(states, 1)


class SharedLayers(Cells):
    """Layers of one cell, each with a state of its own."""

    def __init__(self, begin: str, depth: int = 3) -> None:
        super().__init__()
        self.begin, self.depth = begin, depth

    def forward(self, x: Tensor) -> Tensor:
        zero, read = torch.zeros_like(x[:, 0]), self.layer(x.mean(1)).tanh()
        begin = {"zeros": zero, "a parameter": self.first[:1].expand_as(zero), "what was read": read}[self.begin]
        hidden, states = [begin * (n + 1) for n in range(self.depth)], []
        for token in x.unbind(1):
            for n in range(self.depth):
                token = hidden[n] = self.cell(token, hidden[n])
            states.append(token)
        return torch.stack(states, 1)


class DeepOnce(Cells):
    """All tokens at once through a cell again and again, each time with a state that no input bears on."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        for n in range(4):
            rows = self.cell(rows, self.first[n % 2].expand_as(rows))
        return rows.view_as(x)


class Refined(Cells):
    """A state of each token that is refined by one message after another."""

    def forward(self, x: Tensor) -> Tensor:
        state = x.flatten(0, 1)
        for _ in range(4):
            message = self.layer(state.view_as(x).mean(1, keepdim=True)).expand_as(x)
            state = self.cell(message.reshape(-1, DIM), state)
        return state.view_as(x)


class Gated(Cells):
    """A gate in place of a residual (Parisotto et al., 2019), shared by all layers."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.cell(self.layer(self.norm(x)).flatten(0, 1), x.flatten(0, 1)).view_as(x)
        return x


class BothWays(Cells):
    """One cell from either end."""

    def forward(self, x: Tensor) -> Tensor:
        ends = []
        for tokens in (x.unbind(1), x.flip(1).unbind(1)):
            state, states = torch.zeros_like(x[:, 0]), []
            for token in tokens:
                state = self.cell(token, state)
                states.append(state)
            ends.append(torch.stack(states, 1))
        return ends[0] + ends[1].flip(1)


class Skipping(Cells):
    """A state from two tokens before, and the answer to the last token as the input."""

    def forward(self, x: Tensor) -> Tensor:
        states = [x[:, 0] * 0, self.layer(x[:, 0])]
        for token in x.unbind(1):
            states.append(self.cell(states[-1] + 0 * token, states[-2]))
        return torch.stack(states[2:], 1)


class Long(Cells):
    """Two layers of cells with two states."""

    def __init__(self) -> None:
        super().__init__(nn.LSTMCell)

    def forward(self, x: Tensor) -> Tensor:
        one, other, states = None, None, []
        for token in x.unbind(1):
            one = self.cell(token, one)
            other = self.other(one[0], other)
            states.append(other[0])
        return torch.stack(states, 1)


class Dead(Cells):
    """Zeros that go round say nothing."""

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = 0 * self.cell(torch.zeros_like(token), token)
            states.append(state)
        return torch.stack(states, 1)


WAYS = ("plain", "without a state", "masked", "some rows", "normalised", "detached")
READING = ("plain", "what was read is added", "normalised", "dropped", "mixed", "mapped", "two cells")
HEALTHY: dict[str, Callable[[], nn.Module]] = {
    **{f"from token to token, {way}": lambda way=way: Plain(way) for way in WAYS},
    **{f"own answers, {way}": lambda way=way: Decoder(way) for way in READING},
    **{
        f"layers of one cell, from {begin}": lambda begin=begin: SharedLayers(begin)
        for begin in ("zeros", "a parameter", "what was read")
    },
    "slots": Slots,
    "slots with maps": lambda: Slots(with_maps=True),
    "slots, many times": lambda: Slots(rounds=7),
    "deep once": DeepOnce,
    "refined": Refined,
    "gated": Gated,
    "both ways": BothWays,
    "skipping": Skipping,
    "long": Long,
    "dead": Dead,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_cell_that_goes_on_from_itself_passes(name: str) -> None:
    result = examined(HEALTHY[name])
    assert result.verdict is Verdict.PASS, result


class Narrow(nn.Module):
    """A cell whose input has another size than its state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(DIM, DIM + 1)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for token in x.unbind(1):
            state = self.cell(token, state)
        return x + state.sum(-1)[:, None, None]


class OneStep(Cells):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(x.mean(1), x[:, 0])[:, None]


@pytest.mark.parametrize("make", [Narrow, OneStep, lambda: nn.Linear(DIM, DIM)])
def test_of_one_call_and_of_other_sizes_nothing_is_said(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.SKIP
