"""A training loop with one fault each is found by the check that is there for it, and a sound one by none."""

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor import Adapter
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject, SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

OF_LOOPS = ("GRD207", "GRD209", "GRD214", "GRD215", "GRD216")
CODES = ("GRD204", "GRD205", "GRD206", *OF_LOOPS, "NAN108")
VOCABULARY = 23


class Model(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, dim), nn.Linear(dim, VOCABULARY)
        self.mix, self.drop = nn.GRU(dim, dim, batch_first=True), nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(self.mix(self.drop(self.embed(ids)))[0]))


class Trainer:
    """Weighs micro-batches by their tokens, warms up, clips, remembers the best weights and goes on from snapshots."""

    def __init__(self, model: Model, fault: str = "") -> None:
        self.model, self.fault = model, fault
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: (step + 1) / 10)
        self.best: dict[str, Tensor] = {}
        self.best_loss = float("inf")

    def loss(self, ids: Tensor) -> Tensor:
        logits = self.model(ids)
        if self.fault == "unshifted" or (self.fault == "evaluated unshifted" and not torch.is_grad_enabled()):
            return cross_entropy(logits.flatten(0, 1), ids.flatten())  # here
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def step(self, batches: list[Tensor]) -> float:
        if not self.fault.endswith("left in eval"):
            self.model.train()
        if self.fault != "never cleared":
            self.optimizer.zero_grad()
        total, num_tokens = 0.0, sum(ids[:, 1:].numel() for ids in batches)
        for ids in batches:
            if self.fault == "the last alone":
                self.optimizer.zero_grad()
            share = ids[:, 1:].numel() / num_tokens
            weights = {"summed": 1.0, "alike": 1 / len(batches), "alike throughout": 1 / len(batches)}
            loss = self.loss(ids)
            (loss * weights.get(self.fault, share)).backward()  # here
            shares = {"alike throughout": 1 / len(batches), "loss of all together": 1.0}
            total += loss.item() * shares.get(self.fault, share)
            if self.fault == "schedule by micro-batch":
                self.schedule.step()
            if self.fault == "clipped too soon":
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # here
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.fault != "schedule by micro-batch":
            self.schedule.step()
        return total

    def evaluate(self, batches: list[Tensor]) -> float:
        if self.fault != "evaluates in training":
            self.model.eval()
        if self.fault == "evaluates the last":
            batches = batches[-1:]
        if self.fault == "optimizer forgets":
            self.optimizer.state.clear()
        with torch.set_grad_enabled(self.fault == "keeps graphs"):
            loss = sum(self.loss(ids).item() for ids in batches) / len(batches)
        if loss < self.best_loss:
            kept = self.model.state_dict()  # here
            self.best_loss, self.best = loss, dict(kept) if self.fault == "alias" else copy.deepcopy(kept)
        if self.fault == "evaluation moves weights":
            with torch.no_grad():
                self.model.head.bias.add_(1)
        if self.fault == "one part left in eval":
            self.model.mix.train()
            self.model.embed.train()  # here
        return loss

    def snapshot(self) -> dict[str, Any]:
        kept = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        missing = {"no momentum": "optimizer", "no schedule": "schedule", "no weights": "model"}.get(self.fault)
        states = {name: each.state_dict() for name, each in kept.items() if name != missing}
        return {**states, "best": self.best, "best_loss": self.best_loss}

    def restore(self, snapshot: dict[str, Any]) -> None:
        for name in {"model", "optimizer", "schedule"} & snapshot.keys():
            getattr(self, name).load_state_dict(snapshot[name])
        self.best, self.best_loss = snapshot["best"], snapshot["best_loss"]


def begin(model: Model, fault: str = "") -> TrainingLoop:
    trainer = Trainer(model, fault)
    return TrainingLoop(
        step=trainer.step, evaluate=trainer.evaluate, snapshot=trainer.snapshot, restore=trainer.restore
    )


def subject(fault: str = "", **seams: Any) -> Subject:
    def build(seed: int) -> Model:
        torch.manual_seed(seed)
        return Model()

    made = Subject(
        name="tests",
        build=build,
        forward=lambda model, ids: model(ids),
        input="tokens",
        width=VOCABULARY,
        max_length=128,
        packages=("tests",),
        loop=lambda model: begin(model, fault),
    )
    return replace(made, **seams) if seams else made


def results(examined: Subject, codes: Sequence[str]) -> dict[str, Result]:
    return {code: run_check(registry.load(code), examined) for code in codes}


FAULTS = {  # the check that finds it, words of its message, and whether the line is one of those marked
    "summed": (
        "GRD214",
        "2 copies of a micro-batch at S=67 give 2 times the gradient of one, and 1 times its loss",
        True,
    ),
    "alike": ("GRD214", "0.25 and 0.75 of the loss of a step, and 0.5 and 0.5 of its gradient", True),
    "the last alone": ("GRD214", "give 0.5 times the gradient of one", True),
    "schedule by micro-batch": ("GRD214", "a rate of 0.0003 after a step on one micro-batch, and of 0.0004", False),
    "clipped too soon": ("GRD209", "before the last backward pass", True),
    "unshifted": ("GRD207", "targets are the tokens just read", True),
    "evaluated unshifted": ("GRD207", "targets are the tokens just read", True),
    "left in eval": ("GRD215", "in eval() since are the module", False),
    "one part left in eval": ("GRD215", "in eval() since are", True),
    "evaluation moves weights": ("GRD215", "an evaluation between two steps changes 1 parameter (head.bias)", False),
    "evaluates in training": ("GRD215", "in training mode are the module", False),
    "evaluates the last": ("GRD215", "as the last of them does alone", False),
    "optimizer forgets": ("GRD215", "the optimizer moves 7 parameters", False),
    "alias": ("GRD216", "what an evaluation keeps follows the weights", True),
    "no momentum": ("GRD216", "the learning rate is 0.0001", False),
    "no schedule": ("GRD216", "the learning rate is 0.0002", False),
    "no weights": ("GRD216", "are not what was saved", False),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_loop_at_fault_is_found_by_its_check(fault: str) -> None:
    code, words, is_at_line = FAULTS[fault]
    found = {each: result.findings for each, result in results(subject(fault), OF_LOOPS).items() if result.findings}
    assert set(found) == {code}
    finding = found[code][0]
    assert words in finding.message
    assert Path(finding.where.file) == Path(__file__)
    assert finding.where.module_class == "Model"
    assert is_marked(finding.where.file, finding.where.line) is is_at_line


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_loop_is_silent(seed: int) -> None:
    found = results(subject(seed=seed), CODES)
    said = {code: (each.verdict, each.findings, each.notes) for code, each in found.items()}
    assert said == dict.fromkeys(CODES, (Verdict.PASS, (), ()))


NOTES = {
    "alike throughout": "micro-batches of 1 and 3 rows at S=67 have 0.5 and 0.5 of the loss of a step and of its "
    "gradient: right where each holds as many tokens",
    "loss of all together": "2 copies of a micro-batch at S=67 give 1 times the gradient of one, and 2 times its loss: "
    "right where the loss is to be summed",
}


@pytest.mark.parametrize("way", NOTES)
def test_what_may_be_meant_is_a_note(way: str) -> None:
    result = run_check(registry.load("GRD214"), subject(way))
    assert result.findings == ()
    assert result.notes[0].startswith(NOTES[way])


def test_an_evaluation_that_keeps_graphs_is_a_note() -> None:
    result = run_check(registry.load("GRD215"), subject("keeps graphs"))
    assert result.findings == ()
    assert "torch.no_grad() would save" in result.notes[0]


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
    here = "tests.nsa_doctor.checks.test_training_loops"
    offered = load_subject(SubjectRequest(spec=f"{here}:make"))
    given = load_subject(SubjectRequest(spec=f"{here}:Model", train=f"{here}:begin"))
    for each in (offered, given):
        assert each.loop is begin
        assert each.train_step is not None
    assert given.options[-2:] == ("--train", f"{here}:begin")
    with pytest.raises(SubjectUnusableError, match="or begin\\(module\\) that returns a TrainingLoop"):
        load_subject(SubjectRequest(spec=f"{here}:Model", train=f"{here}:no_step"))
