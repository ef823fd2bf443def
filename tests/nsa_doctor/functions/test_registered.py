"""An operator that hands out memory it has not written is distinguished from one that is registered wrongly."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core.finding import Result
from tests.nsa_doctor.functions.examined import results, subject_of

NUM_SPARE = 4096
calls = iter(range(10**9))


def operator(name: str, spare: Callable[[Tensor], Tensor], num_spare: int = NUM_SPARE) -> Any:
    """Attention that returns spare memory as well, as the state of a generator that dropout alone writes."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_dot_product_attention(q, k, v, is_causal=True), spare(q)

    schema = "(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)"
    made = torch.library.custom_op(f"tests_registered::{name}", attend, mutates_args=(), schema=schema)
    made.register_fake(lambda q, k, v: (torch.empty_like(q), q.new_empty(num_spare, dtype=torch.int64)))
    return made


def unwritten(q: Tensor) -> Tensor:
    """What was there before, which is never the same."""
    memory = torch.empty(NUM_SPARE, dtype=torch.int64, device=q.device)
    return memory if torch.are_deterministic_algorithms_enabled() else memory.fill_(next(calls))


def counted(q: Tensor) -> Tensor:
    """Written in full, and another in each call."""
    return torch.full((NUM_SPARE,), next(calls), device=q.device)


UNWRITTEN = operator("unwritten", unwritten)
COUNTED = operator("counted", counted)
SHORT = operator("short", unwritten, num_spare=NUM_SPARE - 1)


@pytest.fixture(autouse=True)
def memory_is_as_it_was() -> Iterator[None]:
    """The tests of this project run with deterministic algorithms, with which torch fills memory."""
    was_on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(was_on)


def examined(made: Any) -> Result:
    """What the check says of a function that calls it."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = made(query.detach(), key.detach(), value.detach())[0]
        return out

    return results(subject_of(attention, "sdpa", "causal,builtin"), ["FUN506"])["FUN506"]


def test_memory_that_is_not_written_is_no_difference() -> None:
    result = examined(UNWRITTEN)
    assert result.findings == ()
    assert any("returns memory that it has not written" in note for note in result.notes), result.notes


@pytest.mark.parametrize(("made", "test"), [(COUNTED, "test_aot_dispatch_dynamic"), (SHORT, "test_faketensor")])
def test_what_is_registered_wrongly_is_found_beside_it(made: Any, test: str) -> None:
    (finding,) = examined(made).findings
    assert finding.evidence["property"] == test
