"""How a plain module decodes is found out by its names, and has to prove itself."""

import linecache
from collections.abc import Callable
from dataclasses import replace
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


class Means(nn.Module):
    """Each token's mean with all before it, weighted by its position; `slip` is added to a step's position."""

    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self.mix, self.slip = nn.Linear(DIM, DIM), slip

    def run(self, x: Tensor, total: Tensor, start: int) -> tuple[Tensor, Tensor]:
        sums = total + x.cumsum(1)
        position = torch.arange(start + 1, start + x.shape[1] + 1, dtype=x.dtype)
        return self.mix(sums / position[:, None]), sums[:, -1:]


class ByMethods(Means):
    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, x.new_zeros(()), 0)[0]

    def prefill(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        y, total = self.run(x, x.new_zeros(()), 0)
        return y, {"total": total, "length": x.shape[1]}

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        y, cache["total"] = self.run(x, cache["total"], cache["length"] + self.slip)
        cache["length"] += x.shape[1]
        return y


class InHalf(ByMethods):
    """Keeps its sums in half precision while it decodes."""

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        cache["total"] = cache["total"].half().to(x.dtype)
        return super().step(x, cache)


class ByForward(Means):
    def forward(self, x: Tensor, state: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if state is None else state
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return y, (total, start + x.shape[1])


class ByMemories(ByForward):
    """Under the name that recurrence over segments gives its state."""

    def forward(self, x: Tensor, mems: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        return super().forward(x, mems)


class WantsPosition(Means):
    def forward(self, x: Tensor, cache: Tensor | None = None, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.run(x, x.new_zeros(()) if cache is None else cache, start)


class CountsOrIsTold(Means):
    """Positions are counted by the cache unless they are given; `slip` is how many too many each call counts."""

    def forward(
        self,
        x: Tensor,
        past_key_values: tuple[Tensor, int] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if past_key_values is None else past_key_values
        given = start if position_ids is None else int(position_ids.flatten()[0])
        y, total = self.run(x, total, given)
        return y, (total, start + x.shape[1] + self.slip)


class IsTold(Means):
    """Positions start at the first unless they are given."""

    def forward(
        self, x: Tensor, past_key_values: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(()) if past_key_values is None else past_key_values
        return self.run(x, total, 0 if position_ids is None else int(position_ids.flatten()[0]))


class Cached(Means):
    def forward(self, x: Tensor, cache: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if cache is None else cache
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return y, (total, start + x.shape[1])


class AllTokensAgain(Means):
    """Wants the whole sequence beside its cache, and gives the last token."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, _ = self.run(x, x.new_zeros(()) if cache is None else 0 * cache, 0)
        return (y if cache is None else y[:, -1:]), x.sum(1, keepdim=True)


class AskedFor(Means):
    """Returns what it needs to go on where a flag of that name asks for it."""

    def forward(
        self, x: Tensor, prev_carry: tuple[Tensor, int] | None = None, *, return_next_prev_carry: bool = False
    ) -> Any:
        total, start = (x.new_zeros(()), 0) if prev_carry is None else prev_carry
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return (y, (total, start + x.shape[1])) if return_next_prev_carry else y


class OfSegments(Means):
    """Hands on what the last tokens were, a window of a segment, as Transformer-XL does."""

    def forward(self, x: Tensor, past_mems: Tensor | None = None, *, return_mems: bool = False) -> Any:
        seen = x if past_mems is None else torch.cat((past_mems, x), 1)
        y = self.run(seen, x.new_zeros(()), 0)[0][:, -x.shape[1] :]
        return (y, seen[:, -8:]) if return_mems else y


class OneByOne(ByForward):
    """Forgets its state where it is given several tokens."""

    def forward(self, x: Tensor, state: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        return super().forward(x, state if x.shape[1] == 1 else None)


class GoesOn(ByMethods):
    """A prompt may come in parts; a step takes one token, and is wrong where it is given more."""

    def prefill(self, x: Tensor, state: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if state is None else state
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return y, (total, start + x.shape[1])

    def step(self, x: Tensor, state: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, int]]:
        total = state[0] + x[:, :1]
        return self.mix(total / (state[1] + 1)).expand_as(x), (total, state[1] + 1)


class OneToken(GoesOn):
    prefill = ByMethods.prefill

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        y, (cache["total"], cache["length"]) = super().step(x, (cache["total"], cache["length"]))
        return y


class KeysAndValues(Means):
    """A forward that takes past keys and values: `slip` tells how several tokens behind them go wrong."""

    def forward(
        self, x: Tensor, past_key_values: tuple[Tensor, int] | None = None
    ) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if past_key_values is None else past_key_values
        y, total = self.run(x, total, start + (self.slip if start and x.shape[1] > 1 else 0))
        return y, (total, start + x.shape[1])


class LooksAtNoPast(KeysAndValues):
    def forward(
        self, x: Tensor, past_key_values: tuple[Tensor, int] | None = None
    ) -> tuple[Tensor, tuple[Tensor, int]]:
        return super().forward(x, past_key_values if x.shape[1] == 1 else None)


class OtherSteps(ByMethods):
    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * self(x), x

    def step(self, optimizer: Any, closure: Any) -> None:
        optimizer.step(closure)


def found(make: Callable[[], nn.Module]) -> Subject:
    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), make)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (ByMethods, "prefill(x) and step(x, cache)"),
        (ByForward, "forward(x, state=...)"),
        (ByMemories, "forward(x, mems=...)"),
        (nn.GRU, "forward(x, hx=...)"),
        (AskedFor, "forward(x, prev_carry=...)"),
    ],
    ids=["methods", "forward", "memories", "recurrent", "asked"],
)
def test_a_way_to_decode_is_found(make: type[nn.Module], words: str) -> None:
    subject = found(lambda: make(DIM, DIM, batch_first=True) if make is nn.GRU else make())
    assert subject.offers("step") is bool(words)
    assert any(words in note for note in subject.notes) is bool(words)


@pytest.mark.parametrize(
    "make",
    [WantsPosition, IsTold, AllTokensAgain, OtherSteps, OfSegments, lambda: nn.Linear(DIM, DIM)],
    ids=["start", "positions", "again", "other", "segments", "no"],
)
def test_what_is_no_decoding_is_left_alone(make: Callable[[], nn.Module]) -> None:
    assert not found(make).offers("step")


@pytest.mark.parametrize(("slip", "num_findings"), [(0, 0), (1, 1)])
def test_decoding_that_was_found_is_examined(slip: int, num_findings: int) -> None:
    assert len(run_check(registry.load("DEC101"), found(lambda: ByMethods(slip))).findings) == num_findings


@pytest.mark.parametrize("make", [Cached, ByForward, AskedFor])
def test_a_wrong_step_by_a_cache_is_examined_though_it_proves_nothing(make: type[Means]) -> None:
    (finding,) = run_check(registry.load("DEC101"), found(lambda: make(1))).findings
    assert "first token" in finding.message
    assert run_check(registry.load("DEC101"), found(make)).findings == ()


def test_positions_that_a_cache_counts_wrongly_are_found_though_right_ones_can_be_given() -> None:
    (finding,) = run_check(registry.load("DEC101"), found(lambda: CountsOrIsTold(1))).findings
    assert "first token" in finding.message
    assert run_check(registry.load("DEC101"), found(CountsOrIsTold)).findings == ()


def test_a_step_that_serves_one_token_alone_is_given_no_more() -> None:
    subject = found(OneByOne)
    assert run_check(registry.load("DEC101"), subject).findings == ()
    assert run_check(registry.load("DEC102"), subject).verdict == "SKIP"


def test_a_step_of_one_token_is_given_one_at_a_time() -> None:
    subject = found(OneToken)
    assert any("one token at a time" in note for note in subject.notes)
    assert run_check(registry.load("DEC101"), subject).verdict == "PASS"
    assert run_check(registry.load("DEC111"), subject).findings == ()
    assert run_check(registry.load("DEC102"), subject).verdict == "SKIP"


@pytest.mark.parametrize(("slip", "num_findings"), [(0, 0), (1, 1)])
def test_parts_of_a_prompt_are_fed_as_prompts_where_a_prompt_goes_on(slip: int, num_findings: int) -> None:
    subject = found(lambda: GoesOn(slip))
    assert any("prefill(x, state) and step(x, state)" in note for note in subject.notes)
    assert run_check(registry.load("DEC101"), subject).findings == ()
    assert len(run_check(registry.load("DEC102"), subject).findings) == num_findings
    assert run_check(registry.load("DEC111"), subject).findings == ()  # the state that it leaves is right


@pytest.mark.parametrize(("slip", "num_findings"), [(0, 0), (1, 1)])
def test_several_tokens_behind_past_keys_and_values_are_held_to_one_pass(slip: int, num_findings: int) -> None:
    subject = found(lambda: KeysAndValues(slip))
    assert run_check(registry.load("DEC101"), subject).findings == ()
    assert len(run_check(registry.load("DEC102"), subject).findings) == num_findings


def test_several_tokens_that_look_at_no_past_are_not() -> None:
    subject = found(LooksAtNoPast)
    assert any("one token at a time" in note for note in subject.notes)
    assert run_check(registry.load("DEC102"), subject).verdict == "SKIP"


def test_a_cache_in_half_precision_is_found_where_it_is_rounded() -> None:
    (finding,) = run_check(registry.load("DEC101"), replace(found(InHalf), packages=("tests",))).findings
    assert ".half()" in linecache.getline(__file__, finding.where.line)


class Raises(ByMethods):
    """Adds what does not fit at the first step."""

    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        return self.mix(torch.cat([cache["total"], x], dim=-1))


class Refuses(ByMethods):
    def step(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        raise ValueError("not while it is examined")


def test_a_step_that_raises_by_accident_is_what_it_decodes_by() -> None:
    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,))
    subject = adapt(request, Raises)
    assert subject.offers("prefill")
    assert subject.offers("step")
    (finding, *_) = run_check(registry.load("DEC101"), replace(subject, packages=("tests",))).findings
    assert "raises RuntimeError" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).strip().startswith("return self.mix(torch.cat(")


def test_a_step_that_refuses_in_words_is_none() -> None:
    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,))
    assert not adapt(request, Refuses).offers("step")


class ByAStep(Means):
    """No `prefill`: its step reads a prompt where it is given no state."""

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)[0]

    def step(self, x: Tensor, state: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        total, start = (x.new_zeros(()), 0) if state is None else state
        y, total = self.run(x, total, start + (self.slip if start else 0))
        return y, (total, start + x.shape[1])


@pytest.mark.parametrize("slip", [0, 1])
def test_a_step_alone_decodes_and_its_fault_is_found(slip: int) -> None:
    subject = found(lambda: ByAStep(slip))
    assert any("decoded by step(x, state=None)" in note for note in subject.notes)
    assert bool(run_check(registry.load("DEC101"), subject).findings) is bool(slip)


class _Steps(Means):
    """Methods that look like a step and are none."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, x.new_zeros(()), 0)[0]


class ReadsAnEncoder(_Steps):
    def decode(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.forward(x)
        return y if memory is None else y + memory.mean(1, keepdim=True), y


class IsMasked(_Steps):
    def decode(self, x: Tensor, kv_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.forward(x), x


class GivesNoState(_Steps):
    def step(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self.forward(x)


class StepsByOne(_Steps):
    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, total = self.run(x[:, -1:], x.new_zeros(()) if state is None else state, 0)
        return y, total


class StepsInDepth(_Steps):
    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.mix(x if state is None else x + state)
        return y, y


@pytest.mark.parametrize("make", [ReadsAnEncoder, IsMasked, GivesNoState, StepsByOne, StepsInDepth])
def test_what_looks_like_a_step_alone_and_is_none_is_left_alone(make: type[nn.Module]) -> None:
    assert not found(make).offers("step")
