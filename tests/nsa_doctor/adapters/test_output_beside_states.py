"""Which tensor of an answer is the output, where a state or scores beside it have its shape at one length."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.finding import Verdict
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject, WrongOutputError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH, KERNEL = 8, 4
LENGTHS = (1, 3, WIDTH, 11)


@dataclass(frozen=True)
class State:
    tail: Tensor  # [B, D, K - 1]: of S tokens at S = D


class Convolves(nn.Module):
    """A causal convolution, whose state are the inputs of the last tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH)

    def convolved(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        tail = x.new_zeros(len(x), WIDTH, KERNEL - 1) if state is None else state.tail
        whole = torch.cat((tail, x.mT), dim=-1)
        return self.conv(whole).mT, State(whole[..., 1 - KERNEL :])


class WithItsState(Convolves):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, state = self.convolved(x, None)
        return output, state.tail


class Decodes(Convolves):
    def forward(self, x: Tensor, state: State | None = None, return_state: bool = False) -> Any:
        output, state = self.convolved(x, state)
        return (output, state) if return_state else output


class ForgetsItsState(Decodes):
    def forward(self, x: Tensor, state: State | None = None, return_state: bool = False) -> Any:
        return super().forward(x, state, return_state and x.shape[1] != 11)


class WithMoreThanItsState(Decodes):
    def forward(self, x: Tensor, state: State | None = None, return_state: bool = False) -> Any:
        answer = super().forward(x, state, return_state)
        return (*answer, x.sum()) if return_state and x.shape[1] == 11 else answer


class Narrows(nn.Module):
    """Scores before an output that is narrower than the input."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (x @ x.mT).softmax(-1)
        return weights, self.out(weights @ x)


def subject_of(module: nn.Module, **more: Any) -> Subject:
    return adapt(SubjectRequest(spec="tests:module", input="embeddings", width=WIDTH, **more), lambda: module)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_state_of_as_many_channels_as_there_are_tokens_is_no_output(length: int) -> None:
    module, x = WithItsState(), torch.randn(2, length, WIDTH)
    answer = module(x)
    output, others = checked_answer(subject_of(module), answer, x)
    assert output is answer[0]
    assert others == {"[1]": answer[1]}


@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_decoded_from_a_state_of_as_many_channels_as_there_are_tokens(length: int) -> None:
    module, x = Decodes().eval(), torch.randn(2, length + 1, WIDTH)
    subject = subject_of(module)
    assert subject.prefill is not None
    assert subject.step is not None
    with torch.no_grad():
        output, state = subject.prefill(module, x[:, :-1])
        following, _ = subject.step(module, x[:, -1:], state)
        whole = module(x)
    assert isinstance(state, State)
    torch.testing.assert_close(torch.cat((output, following), 1), whole)


@pytest.mark.parametrize("code", ["DEC101", "DEC111", "FWD201", "FWD204"])
@pytest.mark.parametrize("kind", [Decodes, WithItsState])
def test_nothing_is_found_of_a_convolution_that_hands_its_state_on(kind: type[Convolves], code: str) -> None:
    result = run_check(registry.load(code), subject_of(kind()))
    assert not result.findings
    assert result.verdict is Verdict.PASS or (kind, result.verdict) == (WithItsState, Verdict.SKIP)


@pytest.mark.parametrize("length", [1, WIDTH, 11])
def test_scores_before_a_narrower_output_are_none(length: int) -> None:
    module, x = Narrows(), torch.randn(2, length, WIDTH)
    answer = module(x)
    assert checked_answer(subject_of(module), answer, x)[0] is answer[1]


def test_the_width_is_seen_at_another_length_and_at_none_to_avoid() -> None:
    assert subject_of(WithItsState()).output_width == WIDTH
    assert subject_of(Narrows()).output_width == 3
    assert subject_of(WithItsState(), avoid=(16,)).output_width is None
    assert subject_of(nn.LazyLinear(3)).output_width is None


@pytest.mark.parametrize(
    ("kind", "error"), [(ForgetsItsState, WrongOutputError), (WithMoreThanItsState, NotComparableError)]
)
def test_an_answer_without_a_state_is_the_modules_and_one_that_is_not_read_the_doctors(
    kind: type[Decodes], error: type[Exception]
) -> None:
    module = kind()
    subject = subject_of(module)
    assert subject.prefill is not None
    answer = attempt(lambda: subject.prefill(module, torch.randn(2, 11, WIDTH)))
    assert isinstance(answer, Caught)
    assert isinstance(answer.error, error)
