"""A problem solved a few heads at a time, and at once: within a group, over groups, with what heads share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa import nsa_attention
from nsa_doctor.probes.functions import by_heads, shapes
from nsa_doctor.probes.functions.magnitudes import magnitudes
from nsa_doctor.probes.functions.oracle import Arithmetic, solve
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import Problem
from tests.nsa_doctor.functions.examined import subject_of
from tests.nsa_doctor.functions.healthy import eager, varlen

SUBJECTS = {
    "sparse": (nsa_attention, "native", "topk=2,block=8,window=12,gqa=4"),
    "mask": (scaled_dot_product_attention, "sdpa", "mask,gqa=2"),
    "alibi": (scaled_dot_product_attention, "sdpa", "causal,alibi"),
    "sinks": (eager, "hf", "causal,sinks,gqa=2"),
    "packed": (varlen, "flash_varlen", "causal,gqa=4"),
}


def problem(name: str) -> Problem:
    function, like, spec = SUBJECTS[name]
    subject = subject_of(function, like, spec)
    shape = replace(shapes.base(subject), heads=8, groups=8 // subject.spec.ratio, head=8, value=8)
    return problem_of(subject, shapes.of_length(subject, shape, 40, 40))


def tensors(given: Problem, dtype: torch.dtype) -> dict[str, Tensor]:
    truth = solve(given, Arithmetic(dtype)).tensors
    return {**truth, **{f"size of {name}": value for name, value in magnitudes(given, truth).tensors.items()}}


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("heads", [1, 2, 4, 6])
def test_it_is_the_same_as_at_once(name: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(name)
    at_once = tensors(given, torch.float64)
    shape = given.shape
    monkeypatch.setattr(by_heads, "_SCORES", heads * shape.batch * shape.queries * shape.keys)
    seen = counted(by_heads._block, monkeypatch)
    torch.testing.assert_close(tensors(given, torch.float64), at_once)
    assert len(seen) >= 2


def test_what_heads_share_is_added_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem("sparse")
    truth = solve(given, Arithmetic()).tensors["dk_sel"]
    at_once = solve(given, Arithmetic(torch.bfloat16)).tensors["dk_sel"]
    monkeypatch.setattr(by_heads, "_SCORES", 1)
    apart = solve(given, Arithmetic(torch.bfloat16)).tensors["dk_sel"]
    assert apart.dtype == torch.bfloat16
    assert (apart.double() - truth).norm() < 1.2 * (at_once.double() - truth).norm()


def counted(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first head of each block that is made from now on."""
    seen: list[int] = []

    def counting(given: Problem, first: int, *rest: int) -> Any:
        seen.append(first)
        return function(given, first, *rest)

    monkeypatch.setattr(by_heads, "_block", counting)
    return seen
