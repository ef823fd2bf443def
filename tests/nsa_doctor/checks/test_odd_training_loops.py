"""Training loops that are sound and odd, or that cannot be examined, and how a loop is handed over."""

import copy
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa_doctor import Adapter
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_training_loops import Model, Trainer, begin, results, subject


def summing(model: Model) -> TrainingLoop:
    """The loss of a step is a sum over its rows, and so is its gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batches: list[Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([model(ids).square().sum() for ids in batches]).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return TrainingLoop(step=step)


def wanting_rows_of_one_number(model: Model) -> TrainingLoop:
    """Refuses micro-batches of several sizes, and returns no loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batches: list[Tensor]) -> None:
        if len({len(ids) for ids in batches}) > 1:
            raise ValueError("micro-batches must be of one size")
        optimizer.zero_grad()
        for ids in batches:
            (model(ids).square().mean() / len(batches)).backward()
        optimizer.step()

    return TrainingLoop(step=step)


def test_gradients_that_are_never_cleared_are_found() -> None:
    (finding,) = run_check(registry.load("GRD204"), subject("never cleared")).findings
    assert "that it does not when those of the first are cleared by hand: 7 parameters" in finding.message


def with_a_teacher(model: Model) -> TrainingLoop:
    """Follows its own weights of every third step, which it keeps; its gradient depends on the steps before."""
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer, num_steps = torch.optim.SGD(model.parameters(), lr=1e-2), 0

    def step(batches: list[Tensor]) -> Tensor:
        nonlocal num_steps
        num_steps += 1
        optimizer.zero_grad()
        loss = torch.stack([(2 * model(ids) - teacher(ids)).square().mean() for ids in batches]).mean()
        loss.backward()
        optimizer.step()
        if num_steps % 3 == 0:
            teacher.load_state_dict(model.state_dict())
        return loss.detach()

    def restore(kept: list[Any]) -> None:
        nonlocal num_steps
        model.load_state_dict(kept[0])
        teacher.load_state_dict(kept[1])
        num_steps = kept[2]

    return TrainingLoop(
        step=step,
        evaluate=lambda batches: sum(float(teacher(ids).detach().square().mean()) for ids in batches) / len(batches),
        snapshot=lambda: [model.state_dict(), teacher.state_dict(), num_steps],
        restore=restore,
    )


def away_from_its_weights_in_evaluation(model: Model) -> TrainingLoop:
    """Evaluates at other weights than it trains at, and goes back to these as the next step begins, or is restored."""
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=1e-2), list[dict[str, Tensor]]()

    def back() -> None:
        if kept:
            model.load_state_dict(kept.pop())

    def step(batches: list[Tensor]) -> Tensor:
        back()
        model.train()
        optimizer.zero_grad()
        loss = torch.stack([model(ids).square().mean() for ids in batches]).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def evaluate(batches: list[Tensor]) -> float:
        kept.append(copy.deepcopy(model.state_dict()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
            return sum(float(model.eval()(ids).square().mean()) for ids in batches) / len(batches)

    return TrainingLoop(
        step=step,
        evaluate=evaluate,
        snapshot=lambda: kept[-1] if kept else model.state_dict(),
        restore=kept.append,
    )


@pytest.mark.parametrize("loop", [with_a_teacher, away_from_its_weights_in_evaluation])
def test_a_loop_with_a_state_of_its_own_is_silent(loop: Any) -> None:
    found = results(subject(loop=loop, train_step=None), ("GRD204", "GRD214", "GRD215", "GRD216"))
    assert [each.findings for each in found.values()] == [()] * 4
    assert "CRASH" not in {each.verdict.value for each in found.values()}


class Round(dict):  # type: ignore[type-arg]
    """Holds itself, and a lock."""

    def __init__(self) -> None:
        super().__init__(lock=threading.Lock())
        self["itself"] = self


def draws_what_it_evaluates(model: Model) -> TrainingLoop:
    """Masks tokens at random, without dropout and without eval(): its losses are draws, whatever the mode."""
    model.drop.p = 0.0
    loop = begin(model)

    def evaluate(batches: list[Tensor]) -> float:
        with torch.no_grad():
            masked = [torch.where(torch.rand(ids.shape) < 0.3, 1, ids) for ids in batches]
            return sum(float(model(ids).square().mean()) for ids in masked) / len(masked)

    return replace(loop, evaluate=evaluate)


def test_an_evaluation_that_draws_in_every_mode_is_silent() -> None:
    result = run_check(registry.load("GRD215"), subject(loop=draws_what_it_evaluates, train_step=None))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"step": None}, "step of a TrainingLoop must be callable, got NoneType"),
        ({"step": len, "evaluate": 3}, "evaluate of a TrainingLoop must be callable, got int"),
        ({"step": len, "restore": len}, "restore of a TrainingLoop needs a snapshot"),
    ],
)
def test_what_is_no_loop_is_refused_where_it_is_made(parts: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        TrainingLoop(**parts)


def test_what_was_not_compared_is_no_pass() -> None:
    def with_snapshots_alone(model: Model) -> TrainingLoop:
        return replace(begin(model), evaluate=None, restore=None)

    examined = subject(loop=with_snapshots_alone, train_step=None)
    assert run_check(registry.load("GRD216"), examined).verdict is Verdict.SKIP


def test_a_snapshot_that_cannot_be_saved_is_said() -> None:
    loop = lambda model: replace(begin(model), snapshot=Round)  # noqa: E731
    result = run_check(registry.load("GRD216"), subject(loop=loop, train_step=None))
    assert result.verdict is Verdict.SKIP
    assert "its snapshot can neither be saved nor copied: TypeError" in result.reason


def of_adapters(model: Model) -> TrainingLoop:
    """Trains the head alone, and keeps that alone; its rate follows the tokens that were seen."""
    model.requires_grad_(False).head.requires_grad_(True)
    optimizer, num_tokens = torch.optim.AdamW(model.head.parameters(), lr=1e-3), 0

    def step(batches: list[Tensor]) -> dict[str, Tensor]:
        nonlocal num_tokens
        optimizer.zero_grad()
        for ids in batches:
            num_tokens += ids.numel()
            loss = model(ids).square().mean() / len(batches)
            loss.backward()
        optimizer.param_groups[0]["lr"] = 1e-6 * num_tokens
        optimizer.step()
        return {"loss": loss.detach() * len(batches)}

    def restore(kept: tuple[dict[str, Tensor], dict[str, Any], int]) -> None:
        nonlocal num_tokens
        model.head.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        num_tokens = kept[2]

    return TrainingLoop(
        step=step, snapshot=lambda: (model.head.state_dict(), optimizer.state_dict(), num_tokens), restore=restore
    )


def test_a_loop_that_keeps_what_it_trains_alone_is_silent() -> None:
    found = results(subject(loop=of_adapters, train_step=None), ("GRD214", "GRD216"))
    assert {code: (each.verdict, each.findings) for code, each in found.items()} == dict.fromkeys(
        found, (Verdict.PASS, ())
    )


@pytest.mark.parametrize("loop", [summing, wanting_rows_of_one_number])
def test_other_sound_loops_are_silent(loop: Any) -> None:
    found = {code: run_check(registry.load(code), subject(loop=loop, train_step=None)) for code in ("GRD214", "GRD209")}
    said = {code: (each.verdict, each.findings, each.notes) for code, each in found.items()}
    assert said == dict.fromkeys(found, (Verdict.PASS, (), ()))
    for code in ("GRD215", "GRD216"):
        assert run_check(registry.load(code), subject(loop=loop, train_step=None)).verdict is Verdict.SKIP


def test_a_loop_that_is_none_is_said() -> None:
    result = run_check(registry.load("GRD215"), subject(loop=lambda model: Trainer(model).step, train_step=None))
    assert "the seam `loop` must return a TrainingLoop, got method" in f"{result.reason} {result.findings}"


def make() -> Adapter:
    return Adapter(make=Model, seams={"loop": begin})


def no_step(model: Model, batch: Tensor) -> None:
    """Neither a step nor a loop."""


def test_a_loop_is_given_on_the_command_line_or_by_an_adapter() -> None:
    here = "tests.nsa_doctor.checks.test_odd_training_loops"
    offered = load_subject(SubjectRequest(spec=f"{here}:make"))
    given = load_subject(SubjectRequest(spec=f"{here}:Model", train=f"{here}:begin"))
    for each in (offered, given):
        assert each.loop is begin
        assert each.train_step is not None
    assert given.options[-2:] == ("--train", f"{here}:begin")
    with pytest.raises(SubjectUnusableError, match="or begin\\(module\\) that returns a TrainingLoop"):
        load_subject(SubjectRequest(spec=f"{here}:Model", train=f"{here}:no_step"))


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_schedule_that_a_snapshot_forgets_shows_past_its_first_steps(is_kept: bool) -> None:
    def begins(model: Model) -> TrainingLoop:
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=1e-2), {"steps": 0}

        def step(batches: list[Tensor]) -> Tensor:
            seen["steps"] += 1
            optimizer.zero_grad()
            loss = torch.stack([model.eval()(ids).square().mean() for ids in batches]).mean()
            (loss * (1.0 if seen["steps"] < 5 else 0.5)).backward()
            optimizer.step()
            return loss.detach()

        def restore(kept: list[Any]) -> None:
            model.load_state_dict(kept[0])
            if is_kept:
                seen.update(kept[1])

        return TrainingLoop(step=step, snapshot=lambda: [model.state_dict(), dict(seen)], restore=restore)

    findings = run_check(registry.load("GRD216"), subject(loop=begins, train_step=None)).findings
    assert [finding.message.startswith("restored from a snapshot after 6 steps") for finding in findings] == [True] * (
        not is_kept
    )
