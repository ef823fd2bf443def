"""A forward that cannot do with its input alone is refused with the adapter that gives it what it asks for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from tests.gallery.faulty.unusual import two_inputs


class _Attends(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: object = None) -> torch.Tensor:
        return query + key + value


class _Rotates(nn.Module):
    def forward(self, x: torch.Tensor, start: int, *, table: torch.Tensor) -> torch.Tensor:
        return x * table[start]


@pytest.mark.parametrize("said", [{}, {"input": "embeddings", "width": 3}], ids=["guessed", "said"])
@pytest.mark.parametrize(
    ("make", "asked", "call"),
    [
        (_Attends, "query, key and value", "module(x, x, x)"),
        (_Rotates, "x, start and table", "module(x, start=…, table=…)"),
        (two_inputs, "query and memory", "module(x, memory=…)"),
    ],
    ids=["queries, keys and values", "others", "a memory"],
)
def test_a_forward_that_asks_for_more_than_its_input_is_refused_with_the_adapter_for_it(
    make: Callable[[], nn.Module], asked: str, call: str, said: dict[str, Any]
) -> None:
    with pytest.raises(SubjectUnusableError) as refused:
        adapt(SubjectRequest(spec="mha:Attention", lengths=(16,), **said), make)
    assert str(refused.value) == (
        f"subject mha:Attention is given one tensor, and its forward asks for {asked}: name a function that returns "
        f"nsa_doctor.Adapter(make=Attention, call=lambda module, x: {call})"
    )


def test_a_forward_that_a_hook_gives_more_is_taken() -> None:
    def make() -> nn.Module:
        module = nn.Bilinear(64, 64, 64)
        module.register_forward_pre_hook(lambda _module, given: (given[0], given[0]))
        return module

    assert adapt(SubjectRequest(spec="x:y", lengths=(16,)), make).input == "embeddings"
