"""A step that spoils the state it is given is found in its line; one that updates its state in place is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

DIM = 8
State = tuple[Tensor, Tensor, int]
Step = Callable[[State, Tensor], State]


def spoils(state: State, x: Tensor) -> State:
    total, _, length = state
    total = total.mul_(0.9)  # here
    return total + x, x, length + 1


def leaves_alone(state: State, x: Tensor) -> State:
    return 0.9 * state[0] + x, x, state[2] + 1


def updates_in_place(state: State, x: Tensor) -> State:
    state[0].mul_(0.9).add_(x)
    return state[0], x, state[2] + 1


def updates_all_in_place(state: Any, x: Tensor) -> Any:
    state[0].mul_(0.9).add_(x)
    state[1].copy_(x)
    return state


def writes_what_is_read_by_nobody(state: State, x: Tensor) -> State:
    state[1].zero_()
    return leaves_alone(state, x)


def examined(advance: Step) -> Result:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(DIM, DIM)

    def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        outputs, total = [], torch.zeros_like(x[:, :1])
        for token in x.split(1, 1):
            total = 0.9 * total + token
            outputs.append(total)
        return module.get_submodule("mix")(torch.cat(outputs, 1)), (total.clone(), x[:, -1:].clone(), x.shape[1])

    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = advance(state, x)
        return module.get_submodule("mix")(state[0]), state

    return run_check(
        registry.load("DEC112"),
        Subject(
            name="decays",
            build=lambda seed: Decays(),
            forward=lambda module, x: prefill(module, x)[0],
            prefill=prefill,
            step=step,
            input="embeddings",
            width=DIM,
            max_length=64,
            packages=("tests",),
        ),
    )


def test_a_state_that_a_step_spoils_is_found_in_its_line() -> None:
    (finding,) = examined(spoils).findings
    assert finding.evidence["field"] == "state[0]"
    assert finding.where.function == "spoils"
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(
    "advance", [leaves_alone, updates_in_place, updates_all_in_place, writes_what_is_read_by_nobody]
)
def test_a_state_that_is_left_alone_or_moved_on_in_place_is_not(advance: Step) -> None:
    result = examined(advance)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
