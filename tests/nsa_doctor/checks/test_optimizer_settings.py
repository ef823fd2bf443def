"""A setting of an optimizer that no step follows is found; torch's optimizers, each with all settings, are silent."""

import linecache
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check

DIM = 16
Parameters = list[nn.Parameter]


class Own(torch.optim.Optimizer):
    """Descent with a momentum and a decay, of which it may forget one."""

    def __init__(self, parameters: Parameters, *, forgets: str, in_place: bool = False) -> None:
        super().__init__(parameters, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01})
        self.forgets, self.momentum = forgets, 0.9 if in_place else None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # here
        for group in self.param_groups:
            for each in group["params"]:
                buffer = self.state[each].setdefault("buffer", torch.zeros_like(each))
                if self.forgets == "momentum":
                    buffer = torch.zeros_like(each)
                buffer.mul_(group["momentum"] if self.momentum is None else self.momentum).add_(each.grad)
                decay = 0.0 if self.forgets == "weight_decay" else group["weight_decay"]
                each.mul_(1 - group["lr"] * decay).sub_(group["lr"] * buffer)


Scheduled = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def _examined(make: Callable[[Parameters], torch.optim.Optimizer], scheduled: Scheduled | None = None) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))

    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = make(list(module.parameters()))
        schedule = None if scheduled is None else scheduled(optimizer)

        def step(batches: list[Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = torch.stack([module(each).square().mean() for each in batches]).mean()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            return loss.detach()

        return TrainingLoop(step=step)

    subject = Subject(
        name="trained", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM, loop=begin
    )
    return run_check(registry.load("GRD220"), subject)


class Refusing(Own):
    """It looks at its settings in each step."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if any(group["momentum"] != 0.9 for group in self.param_groups):
            raise ValueError("momentum must be 0.9")
        super().step(closure)


HEALTHY: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.01, nesterov=True),
    "SGD without": lambda p: torch.optim.SGD(p, lr=1e-2),
    "two groups": lambda p: torch.optim.SGD(
        [{"params": p[:1], "weight_decay": 0.1}, {"params": p[1:], "weight_decay": 0.0}], lr=1e-2, momentum=0.9
    ),
    "its own": lambda p: Own(p, forgets=""),
    "its own, which refuses": lambda p: Refusing(p, forgets="momentum"),
    "its own, kept beside": lambda p: Own(p, forgets="", in_place=True),
    **{
        name: partial(getattr(torch.optim, name), weight_decay=0.01)
        for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adafactor", "Adadelta", "Adagrad")
    },
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, weight_decay=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, weight_decay=0.01),
    "Muon": lambda p: torch.optim.Muon([each for each in p if each.ndim == 2], weight_decay=0.01),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_optimizers_that_follow_what_they_are_given_are_silent(name: str) -> None:
    result = _examined(HEALTHY[name])
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("name", ["SGD", "AdamW", "its own"])
def test_a_schedule_may_move_what_is_followed(name: str) -> None:
    def scheduled(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100)  # of momentum and betas too

    result = _examined(HEALTHY[name], scheduled)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize(("forgets", "said"), [("momentum", "momentum=0.9"), ("weight_decay", "weight_decay=0.01")])
def test_a_setting_that_no_step_follows_is_found_at_the_step(forgets: str, said: str) -> None:
    (finding,) = _examined(lambda parameters: Own(parameters, forgets=forgets)).findings
    assert finding.message.startswith(f"Own does not follow {said}: 40 steps")
    where: Any = finding.where
    lines = [linecache.getline(where.file, where.line + more) for more in range(2)]
    assert any("# here" in line for line in lines)


def test_an_optimizer_that_takes_plain_steps_follows_no_moments() -> None:
    class Plain(torch.optim.AdamW):
        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for each in group["params"]:
                    each.sub_(group["lr"] * each.grad)

    (finding,) = _examined(lambda parameters: Plain(parameters, lr=1e-2)).findings
    assert finding.message.startswith("Plain does not follow betas[0]=0.9, betas[1]=0.999 and weight_decay=0.01: 40")
