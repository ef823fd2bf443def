"""What a call is given beside its tensors lies where they lie, and is made before a graph is captured."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.adapters.functions.known import convention
from nsa_doctor.core.function_spec import function_spec
from nsa_doctor.probes.functions.cache_uses import by_number
from nsa_doctor.probes.functions.calling import Asking, laid_out, prepared
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.shapes import base, of_length
from nsa_doctor.subject.function import FunctionSubject, Problem
from tests.nsa_doctor.functions.examined import subject_of
from tests.nsa_doctor.functions.test_more_uses import paged


def devices_given(subject: FunctionSubject, problem: Problem) -> set[str]:
    """Where the tensors lie that a call is given, its inputs being on the meta device."""
    inputs = {name: each.to("meta") for name, each in laid_out(subject, problem, Asking(wants=())).items()}
    asked = subject.convention.arguments(problem, inputs)
    given = (*asked.positional, *(each.value for each in asked.keywords))
    return {each.device.type for each in given if isinstance(each, Tensor)}


@pytest.mark.parametrize("like", ["flash", "flash_varlen", "sdpa"])
def test_slopes_lie_where_the_queries_lie(like: str) -> None:
    spec = function_spec("causal,alibi")
    right = replace(subject_of(scaled_dot_product_attention, "sdpa", "causal"), spec=spec)
    subject = replace(right, convention=convention(like, spec), known={})
    problem = problem_of(subject, of_length(subject, base(right), 9, 9))
    assert problem.slopes is not None
    assert devices_given(subject, problem) == {"meta"}


def test_pages_and_their_table_lie_where_the_queries_lie() -> None:
    subject = subject_of(paged(-1), "flash_kvcache", "causal")
    uses = list(by_number(subject, of_length(subject, base(subject), 41, 41)))
    assert [use.problem.constants["caches"]["k"].shape[1] for use in uses] == [16, 256]
    for use in uses:
        assert devices_given(subject, use.problem) == {"meta"}


def test_arguments_are_made_once_for_all_calls() -> None:
    given: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if attn_mask is not None:
            given.append(attn_mask)
        return scaled_dot_product_attention(q, k, v, attn_mask)

    subject = subject_of(attend, "sdpa", "mask")
    problem = problem_of(subject, base(subject))
    call = prepared(subject, problem, laid_out(subject, problem, Asking(wants=())))
    given.clear()
    call()
    call()
    first, second = given
    assert first is second
    assert first.dtype == torch.bool
