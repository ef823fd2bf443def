"""Steps from a first state, and by one token of a row, are found; what raises by accident is examined."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8
State = tuple[Tensor, int]


def found(make: Callable[[], nn.Module]) -> Subject:
    return adapt(SubjectRequest(spec="x:y", width=DIM, input="embeddings"), make)


class Means(nn.Module):
    """Each token's mean with all before it; `slip` is added to how many a step counts."""

    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self.mix, self.slip = nn.Linear(DIM, DIM), slip

    def run(self, x: Tensor, total: Tensor, start: int) -> tuple[Tensor, Tensor]:
        sums = total[:, None] + x.cumsum(1)
        counts = torch.arange(start + 1, start + x.shape[1] + 1, dtype=x.dtype)
        return self.mix(sums / counts[:, None]), sums[:, -1]

    def init_state(self, batch_size: int) -> State:
        return self.mix.weight.new_zeros(batch_size, DIM), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, *self.init_state(len(x)))[0]


class FromAFirstState(Means):
    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        total, start = state
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return y, (total, start + 1)


class ByOneToken(FromAFirstState):
    """Steps by [B, D]."""

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = super().step(x_t[:, None], state)
        return y[:, 0], state


class WithManyStates(Means):
    """The state is two arguments, and what comes back is flat."""

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int) -> tuple[Tensor, Tensor]:
        assert max_seqlen > 0
        return self.mix.weight.new_zeros(batch_size, DIM), torch.zeros(batch_size, 1)

    def step(self, x: Tensor, sum_state: Tensor, count_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, count = sum_state + x[:, 0], count_state + 1
        shown = count + (self.slip if count[0, 0] > 1 else 0)
        return self.mix(total / shown)[:, None], total, count


class AskedForIt(Means):
    """Its forward returns the state that its step wants."""

    init_state = None  # type: ignore[assignment]

    def forward(self, x: Tensor, return_state: bool = False) -> Any:
        y, total = self.run(x, x.new_zeros(len(x), DIM), 0)
        return (y, (total, x.shape[1])) if return_state else y

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, total = self.run(x, state[0], state[1] + self.slip)
        return y, (total, state[1] + 1)


@pytest.mark.parametrize("slip", [0, 1])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (FromAFirstState, "init_state(batch_size) and step(x, state)"),
        (ByOneToken, "init_state(batch_size) and step(x_t, state) of a row's one token"),
        (WithManyStates, "allocate_inference_cache(batch_size, max_seqlen) and step(x, sum_state, count_state)"),
        (AskedForIt, "forward(x, return_state=True) and step(x, state)"),
    ],
    ids=["start", "flat", "many", "asked"],
)
def test_a_step_from_a_first_state_decodes(make: type[Means], words: str, slip: int) -> None:
    subject = found(lambda: make(slip))
    assert any(f"decoded by {words}, which" in note for note in subject.notes), subject.notes
    assert bool(run_check(registry.load("DEC101"), subject).findings) is bool(slip)


class Prompts(Means):
    """A prompt raises where its sums are put; a step would not."""

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        y, total = self.run(x, *self.init_state(len(x)))
        space = x.new_zeros(len(x), DIM + 1)
        space[:] = total
        return y, (space, x.shape[1])

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, total = self.run(x, *state)
        return y, (total, state[1] + 1)


class IsSetUpFirst(Prompts):
    """Wants its space made by whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.space: Tensor | None = None

    def setup_cache(self, batch_size: int) -> None:
        self.space = torch.zeros(batch_size, DIM)

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        y, total = self.run(x, *self.init_state(len(x)))
        self.space.copy_(total)  # type: ignore[union-attr]
        return y, (total, x.shape[1])


class RefusesPrompts(Prompts):
    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        raise ValueError("give it a session")


class RaisesWithACache(Means):
    """By its forward: what it is asked to keep, or what it goes on from, does not fit."""

    def __init__(self, is_step: bool = True) -> None:
        super().__init__()
        self.is_step = is_step

    def forward(self, x: Tensor, past_key_values: State | None = None, use_cache: bool = False) -> Any:
        total, start = self.init_state(len(x)) if past_key_values is None else past_key_values
        y, total = self.run(x, total, start)
        if use_cache and self.is_step is (start > 0):
            total = total + x.new_zeros(DIM + 1)
        return (y, (total, start + x.shape[1])) if use_cache else y


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (Prompts, "prompt"),
        (lambda: RaisesWithACache(is_step=False), "prompt"),
        (RaisesWithACache, "step"),
    ],
    ids=["methods", "asking", "going-on"],
)
def test_what_raises_by_accident_is_what_it_decodes_by(make: Callable[[], nn.Module], part: str) -> None:
    subject = found(make)
    assert any(f"though no {part} of it ends" in note for note in subject.notes), subject.notes
    assert run_check(registry.load("DEC101"), subject).verdict == "FAIL"


@pytest.mark.parametrize("make", [IsSetUpFirst, RefusesPrompts])
def test_a_prompt_that_wants_more_or_says_no_is_left_alone(make: type[nn.Module]) -> None:
    assert not found(make).offers("prefill")


class ForgetsItsCache(Means):
    def forward(self, x: Tensor, cache: State | None = None) -> tuple[Tensor, State]:
        y, total = self.run(x, *self.init_state(len(x)))
        return y, (total, x.shape[1])


def test_a_cache_that_is_not_read_is_found() -> None:
    (finding,) = run_check(registry.load("DEC101"), found(ForgetsItsCache)).findings
    assert "first token 1" in finding.message


class BeginsLate(Prompts):
    """Its prompt counts one too many."""

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        y, total = self.run(x, self.mix.weight.new_zeros(len(x), DIM), 1)
        return y, (total, x.shape[1])


class LooksAhead(Prompts):
    """What streams gives for a prompt is right: one pass sees what comes later."""

    def forward(self, x: Tensor) -> Tensor:
        return self.mix((x.cumsum(1) + x.roll(-1, 1)) / 4)

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        return self.mix(x.cumsum(1) / 4), (x.sum(1), x.shape[1])

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.mix((state[0][:, None] + x) / 4), (state[0] + x[:, 0], state[1] + 1)


class OfTheNext(Prompts):
    """A prompt gives what one pass gives a token later."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        y, total = self.run(x, *self.init_state(len(x)))
        return y, (total, x.shape[1])


def test_a_prompt_of_other_positions_is_examined_where_one_pass_can_be_held_against_it() -> None:
    assert run_check(registry.load("DEC101"), found(BeginsLate)).verdict == "FAIL"
    assert not found(LooksAhead).offers("prefill")
    assert not found(OfTheNext).offers("prefill")


class BeforeItIsAsked(Means):
    """A property that is not to be asked for yet has the name of what makes a first state."""

    @property
    def initial_state(self) -> State:
        raise RuntimeError("set a batch size first")

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.run(x, *state)[0], state


class WantsACache(Means):
    """Whoever calls it hands its cache in."""

    def forward(self, x: Tensor, cache: Any = None, use_cache: bool = False) -> Any:
        y = super().forward(x)
        return (y, cache.update(y)) if use_cache else y


class OfRequests(Prompts):
    def prefill(self, batch: dict[str, Tensor]) -> tuple[Tensor, State]:  # type: ignore[override]
        return super().prefill(batch["x"])


class OfSessions(Prompts):
    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, State] = {}

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        y, total = self.run(x, *self.sessions["default"])
        return y, (total, x.shape[1])


class Trains(Means):
    def init_train_state(self) -> dict[str, int]:
        return {"step": 0}

    def step(self, batch: tuple[Tensor, Tensor], state: dict[str, int]) -> tuple[Tensor, dict[str, int]]:
        x, y = batch
        return (self(x) - y).square().mean(), state


@pytest.mark.parametrize("make", [BeforeItIsAsked, WantsACache, OfRequests, OfSessions, Trains])
def test_what_is_given_other_things_than_it_takes_is_not_blamed(make: type[nn.Module]) -> None:
    subject = found(make)
    assert not subject.offers("prefill") or make is BeforeItIsAsked
    assert run_check(registry.load("FWD101"), subject).findings == ()


class Cell(Means):
    """A recurrent cell of [B, D], which the forward runs along a sequence; its prompt may be read at once."""

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for x_t in x.unbind(1):
            y, state = self.step(x_t, state)
            outputs.append(y)
        return torch.stack(outputs, 1)

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = x if state is None else state / 2 + x
        return self.mix(total), total


class ReadsThenSteps(Cell):
    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.forward(x)
        total = x[:, 0]
        for x_t in x[:, 1:].unbind(1):
            total = total / 2 + x_t
        return y, total

    def step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().step(x, state)


@pytest.mark.parametrize("make", [Cell, ReadsThenSteps])
def test_a_cell_steps_by_a_rows_one_token(make: type[nn.Module]) -> None:
    subject = found(make)
    assert any("of a row's one token" in note for note in subject.notes), subject.notes
    for code in ("DEC101", "DEC106", "DEC107"):
        assert run_check(registry.load(code), subject).findings == ()
