"""An evaluation of weights that no step reaches is found; averages that are updated in whatever way are silent."""

import copy
import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check

DIM = 8

Begun = tuple[nn.Module, Callable[[], None]]


def mean_loss(module: nn.Module, batches: list[Tensor]) -> Tensor:
    return torch.stack([module(each).square().mean() for each in batches]).mean()


def live(module: nn.Module) -> Begun:
    return module, lambda: None


def averaged(module: nn.Module) -> Begun:
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    return average, lambda: average.update_parameters(module)


def averaged_at_times(module: nn.Module) -> Begun:
    average, calls = AveragedModel(module), [0]

    def update() -> None:
        calls[0] += 1
        if calls[0] % 10 == 0:
            average.update_parameters(module)

    return average, update


def copied_before(module: nn.Module) -> Begun:
    return copy.deepcopy(module), lambda: None


def averaged_in_one_dtype(module: nn.Module) -> Begun:
    average = copy.deepcopy(module)

    @torch.no_grad()
    def update() -> None:
        for mean, value in zip(average.parameters(), module.parameters(), strict=True):
            if value.dtype == torch.float16:
                mean.lerp_(value, 0.01)

    return average, update


def _examined(
    evaluated: Callable[[nn.Module], Begun], answer: Callable[[Tensor], Tensor] = lambda loss: loss
) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))

    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.AdamW(module.parameters())
        other, update = evaluated(module)

        def step(batches: list[Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = mean_loss(module, batches)
            loss.backward()
            optimizer.step()
            update()
            return loss.detach()

        @torch.no_grad()
        def evaluate(batches: list[Tensor]) -> Tensor:  # here
            return answer(mean_loss(other, batches))

        return TrainingLoop(step=step, evaluate=evaluate)

    subject = Subject(
        name="trained", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM, loop=begin
    )
    return run_check(registry.load("GRD221"), subject)


@pytest.mark.parametrize("evaluated", [live, averaged, averaged_at_times])
def test_what_steps_reach_is_silent(evaluated: Callable[[nn.Module], Begun]) -> None:
    result = _examined(evaluated)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("evaluated", [copied_before, averaged_in_one_dtype])
def test_what_no_step_reaches_is_found_at_the_evaluation(evaluated: Callable[[nn.Module], Begun]) -> None:
    (finding,) = _examined(evaluated).findings
    assert finding.message.startswith(
        "after 12 steps at S=67 the evaluation of 4 batches gives the very losses of before"
    )
    lines = [linecache.getline(finding.where.file, finding.where.line + more) for more in range(2)]
    assert any("# here" in line for line in lines)


def test_a_share_that_is_zero_on_all_batches_says_nothing() -> None:
    assert _examined(copied_before, lambda loss: 0 * loss).verdict is Verdict.SKIP
