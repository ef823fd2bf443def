"""Training loops that climb, by their optimizer's step or by its rate, and such in which a loss may rise."""

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_training_loops import Model, subject


class Signed(torch.optim.Optimizer):
    """A step of one size along the signs of gradients, times `sign`, with decay of the weights."""

    def __init__(self, parameters: Any, sign: float, decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": 1e-2, "sign": sign, "decay": decay})

    def step(self, closure: Any = None) -> None:  # here
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1 - group["decay"])
                parameter.data.add_(parameter.grad.sign(), alpha=group["sign"] * group["lr"])


def by_hand(parameters: Any) -> Any:
    """No optimizer: a step that `sign` of the gradient is added in."""
    kept = list(parameters)

    class Hand:
        def zero_grad(self) -> None:
            for each in kept:
                each.grad = None

        def step(self) -> None:
            with torch.no_grad():
                for each in kept:
                    each.add_(each.grad, alpha=1e-2)

    return Hand()


class Projected(torch.optim.SGD):
    """Keeps weights small: the first step leads away from where they begin, whatever the loss."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.clamp_(-1e-3, 1e-3)


OPTIMIZERS = {  # and whether a loop with it climbs, and the words of its line
    "descends": (lambda parameters: Signed(parameters, -1.0), ""),
    "descends and decays": (lambda parameters: Signed(parameters, -1.0, 0.3), ""),
    "is projected": (lambda parameters: Projected(parameters, lr=1e-2), ""),
    "does not move": (lambda parameters: torch.optim.SGD(parameters, lr=0.0), ""),
    "climbs": (lambda parameters: Signed(parameters, 1.0), "def step(self, closure: Any = None) -> None:  # here"),
    "is set to climb": (lambda parameters: torch.optim.SGD(parameters, lr=1e-2, maximize=True), "def step(batches"),
    "climbs by hand": (by_hand, "def step(batches"),
}


def looping(
    make: Callable[[Model], Any], before: Callable[[Any, int], None] = lambda optimizer, number: None
) -> Result:
    """What GRD206 says of steps of an optimizer, each with something done to it before, by its number."""

    def begins(model: Model) -> TrainingLoop:
        optimizer, numbers = make(model), itertools.count()

        def step(batches: list[Tensor]) -> Tensor:
            before(optimizer, next(numbers))
            optimizer.zero_grad()
            loss = torch.stack([model.eval()(ids).square().mean() for ids in batches]).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return TrainingLoop(step=step)

    return run_check(registry.load("GRD206"), subject(loop=begins, train_step=None))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_that_climbs_is_found_at_its_optimizer(name: str) -> None:
    make, line = OPTIMIZERS[name]
    findings = looping(lambda model: make(model.parameters())).findings
    assert ["along the gradient of the loss that it returns" in finding.message for finding in findings] == [
        True
    ] * bool(line)
    for finding in findings:
        assert line in linecache.getline(finding.where.file, finding.where.line)


@pytest.mark.parametrize("first", [-1, 0, 1])
def test_a_warm_up_that_begins_below_zero_is_found(first: int) -> None:
    def warm_up(optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 * (first + number)

    findings = looping(lambda model: torch.optim.AdamW(model.parameters()), warm_up).findings
    assert ["at a rate of -0.001, below zero" in each.message for each in findings] == [True] * (first < 0)


def test_a_rate_below_zero_of_some_parameters_alone_is_silent() -> None:
    """A multiplier climbs where the rest descends."""

    def make(model: Model) -> torch.optim.Optimizer:
        head = list(model.head.parameters())
        rest = [each for name, each in model.named_parameters() if not name.startswith("head")]
        return torch.optim.SGD([{"params": head}, {"params": rest}], lr=1e-3)

    def turn(optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.param_groups[0]["lr"] = -1e-3

    assert not [each for each in looping(make, turn).findings if "below zero" in each.message]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradients_of_a_sparse_embedding_are_followed_too(sign: float) -> None:
    def make(model: Model) -> Any:
        model.embed.sparse = True
        return torch.optim.SGD(model.parameters(), lr=1e-2) if sign > 0 else by_hand(model.parameters())

    result = looping(make)
    assert result.verdict is (Verdict.PASS if sign > 0 else Verdict.FAIL), result.reason


@pytest.mark.parametrize("what", ["two players", "a reward"])
def test_a_loop_in_which_a_loss_may_rise_is_silent(what: str) -> None:
    """A critic that is led away from what the actor wants; and a reward, whose opposite is differentiated."""

    def begins(model: Model) -> TrainingLoop:
        head = list(model.head.parameters())
        rest = [each for name, each in model.named_parameters() if not name.startswith("head")]
        one, two = torch.optim.SGD(rest, lr=1e-2), torch.optim.SGD(head, lr=1.0)

        def step(batches: list[Tensor]) -> Tensor:
            logits = lambda: torch.cat([model.eval()(ids) for ids in batches])  # noqa: E731
            if what == "two players":
                model.zero_grad()
                (logits() + 1).square().mean().backward()
                two.step()
            model.zero_grad()
            value = logits().mean()
            (-value).backward()
            one.step()
            return -value.detach() if what == "two players" else value.detach()

        return TrainingLoop(step=step)

    assert run_check(registry.load("GRD206"), subject(loop=begins, train_step=None)).findings == ()
