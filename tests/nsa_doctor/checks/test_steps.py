"""Whose optimizer a training loop steps, with which gradients and how far: each fault has its finding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.probes.model.loops import preserved_loop
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8
CODES = ("GRD204", "GRD205", "GRD206")
Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.tanh(self.before(x)).cumsum(1))


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    return (module(x) - x.roll(1, 1)).square().mean()


def subject(step: Step, **seams: Any) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Model()

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(
        name="looped",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        packages=("tests",),
        train_step=step,
        profile="smoke",
        **seams,
    )


def results(step: Step, **seams: Any) -> dict[str, Result]:
    looped = subject(step, **seams)
    found = {code: run_check(registry.load(code), looped) for code in CODES}
    assert all(result.verdict in (Verdict.PASS, Verdict.FAIL) for result in found.values()), found
    return found


def only(step: Step, **seams: Any) -> Finding:
    (finding,) = [each for result in results(step, **seams).values() for each in result.findings]
    return finding


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Own:
    """Steps an optimizer that it makes for the first module it sees."""

    def __init__(self, part: Callable[[nn.Module], nn.Module] = lambda module: module, rate: float = 1e-3) -> None:
        self.part, self.rate, self.optimizer = part, rate, None

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.part(module).parameters(), lr=self.rate)
        return descend(self.optimizer, loss_of(module, x))


class NeverClears(Own):
    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        self.optimizer = self.optimizer or torch.optim.AdamW(module.parameters(), lr=self.rate)
        loss = loss_of(module, x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def by_hand(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    module.zero_grad()
    loss = loss_of(module, x)
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(0.01 * parameter.grad)
    return loss.detach()


def made_in_the_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    return descend(torch.optim.SGD(module.parameters(), lr=0.01), loss_of(module, x))


def through_a_closure(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    def again() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, x)
        loss.backward()
        return loss

    return optimizer.step(again).detach()


def in_parts(weight: Callable[[int], float]) -> Step:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        parts = x.split(1)
        total = torch.zeros(())
        for part in parts:
            loss = loss_of(module, part) * weight(len(parts))
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


class Every:
    """Steps at every fourth call."""

    def __init__(self, share: float) -> None:
        self.count, self.share = 0, share

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = loss_of(module, x)
        (loss * self.share).backward()
        self.count += 1
        if self.count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()


class _WarmsUp:
    """A rate that grows from next to nothing."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        self.count += 1
        optimizer.param_groups[0]["lr"] = 1e-8 * self.count
        return descend(optimizer, loss_of(module, x))


NOTED = {
    "own": (Own(), "the loop steps an optimizer of its own (AdamW), not the one that it is handed"),
    "made-in-the-step": (made_in_the_step, "an optimizer of its own (SGD)"),
    "by-hand": (by_hand, "without any optimizer"),
}


@pytest.mark.parametrize(("step", "said"), NOTED.values(), ids=NOTED.keys())
def test_whose_optimizer_steps_is_a_note(step: Step, said: str) -> None:
    found = results(step)
    assert [each for result in found.values() for each in result.findings] == []
    assert [said in note for note in found["GRD205"].notes] == [True]


HEALTHY = {
    "closure": through_a_closure,
    "parts-weighed": in_parts(lambda count: 1 / count),
    "warm-up": _WarmsUp(),
}


@pytest.mark.parametrize("step", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_loop_that_is_right_is_passed_over(step: Step) -> None:
    found = results(step, loss=loss_of)
    assert [(result.findings, result.notes) for result in found.values()] == [((), ())] * len(CODES)


def test_what_the_own_optimizer_does_not_hold_is_found() -> None:
    finding = only(Own(lambda module: module.after))
    assert "2 parameters (before.weight, before.bias) of 4 do not move" in finding.message
    assert finding.message.endswith("the optimizer that steps (AdamW, of its own) does not hold them")


def test_an_optimizer_of_another_module_is_found() -> None:
    finding = only(Own(lambda module: Model()))
    assert "it steps an optimizer of its own (AdamW), which holds no parameter of the module" in finding.message


@pytest.mark.parametrize("step", [Own(rate=1e-7), Own(rate=1e-12)], ids=["tiny", "least"])
def test_a_rate_too_small_to_matter_is_found(step: Step) -> None:
    assert "of their size each, at a learning rate of 1e-" in only(step).message


def test_a_handed_optimizer_set_to_a_tiny_rate_is_found() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] = 1e-7
        return descend(optimizer, loss_of(module, x))

    assert "at a learning rate of 1e-07 (at least 2e-07)" in only(step).message


def test_an_own_optimizer_that_is_never_cleared_is_found() -> None:
    finding = only(NeverClears())
    assert finding.code == "GRD204"
    assert "1 times the first step's is in it" in finding.message


def test_a_step_before_backward_is_found() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.step()
        optimizer.zero_grad()
        loss = loss_of(module, x)
        loss.backward()
        return loss.detach()

    (finding,) = results(step)["GRD204"].findings
    assert "the optimizer steps before backward at S=67" in finding.message


WEIGHED = {
    "summed": (in_parts(lambda count: 1.0), "4 backward passes before a step at S=67 give 4 times the gradient"),
    "divided-twice": (
        in_parts(lambda count: 1 / count**2),
        "4 backward passes before a step at S=67 give 0.25 times the gradient",
    ),
    "every-fourth-call": (Every(1.0), "4 backward passes before a step at S=67 give 4 times the gradient"),
}


@pytest.mark.parametrize(("step", "said"), WEIGHED.values(), ids=WEIGHED.keys())
def test_passes_that_are_weighed_otherwise_than_the_loss_are_found(step: Step, said: str) -> None:
    (finding,) = run_check(registry.load("GRD204"), subject(step, loss=loss_of)).findings
    assert finding.message.startswith(said)


def test_a_quarter_at_every_fourth_call_is_right() -> None:
    result = run_check(registry.load("GRD204"), subject(Every(0.25), loss=loss_of))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_passes_that_are_summed_are_a_note_where_no_loss_says_how_they_are_weighed() -> None:
    result = run_check(registry.load("GRD204"), subject(in_parts(lambda count: 1.0)))
    assert result.verdict is Verdict.PASS
    assert "right where the loss is a sum over rows" in result.notes[0]


def test_what_a_loop_keeps_is_given_back_after_a_check() -> None:
    own, seen = Own(), {"count": 0, "last": None}

    def counting(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        seen["count"] += 1

    with preserved_loop(own), preserved_loop(counting):
        own.optimizer = "of one module"
        counting(Model(), own.optimizer, torch.zeros(1))
    assert (own.optimizer, seen) == (None, {"count": 0, "last": None})
