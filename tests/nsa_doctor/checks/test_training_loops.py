"""A training loop with one fault each is found by the check that is there for it, and a sound one by none."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

OF_LOOPS = ("GRD207", "GRD209", "GRD214", "GRD215", "GRD216")
CODES = ("GRD204", "GRD205", *OF_LOOPS, "NAN108")
VOCABULARY = 23


class Mix(nn.Module):
    """Each token is given what those up to it have in common."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]).tanh())


class Model(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, dim), nn.Linear(dim, VOCABULARY)
        self.mix, self.drop = Mix(dim), nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(self.mix(self.drop(self.embed(ids)))))


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

    def step(self, batches: list[Tensor]) -> float | None:
        if not self.fault.endswith("left in eval"):
            self.model.train()
        if self.fault != "never cleared":
            self.optimizer.zero_grad()
        if self.fault == "the last twice":  # as where functions are made in a loop and called after it
            batches = [batches[-1]] * len(batches)
        total, num_tokens = 0.0, sum(ids[:, 1:].numel() for ids in batches)
        for ids in batches:
            if self.fault == "the last alone":
                self.optimizer.zero_grad()
            share = ids[:, 1:].numel() / num_tokens
            weights = {"summed": 1.0, "no loss": 1.0, "alike": 1 / len(batches), "alike throughout": 1 / len(batches)}
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
        return None if self.fault == "no loss" else total

    def evaluate(self, batches: list[Tensor]) -> float:
        if self.fault != "evaluates in training":
            self.model.eval()
        if self.fault == "seeds its evaluation":
            torch.manual_seed(7)
        if self.fault == "evaluates to NaN":
            return float("nan")
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
    "the last twice": ("GRD214", "of micro-batches of 1 and 3 rows at S=67 the last alone is in the gradient", True),
    "schedule by micro-batch": ("GRD214", "a rate of 0.0003 after a step on one micro-batch, and of 0.0004", False),
    "clipped too soon": ("GRD209", "before the last backward pass", True),
    "unshifted": ("GRD207", "targets are the tokens just read", True),
    "evaluated unshifted": ("GRD207", "targets are the tokens just read", True),
    "left in eval": ("GRD215", "in eval() since are the module", False),
    "one part left in eval": ("GRD215", "in eval() since are", True),
    "evaluation moves weights": ("GRD215", "an evaluation between two steps changes 1 parameter (head.bias)", False),
    "evaluates in training": ("GRD215", "in training mode are the module", False),
    "seeds its evaluation": ("GRD215", "sets the random generator of torch to one state", False),
    "evaluates to NaN": ("GRD215", "an evaluation at S=67 gives nan", False),
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
    "no loss": "2 copies of a micro-batch at S=67 give 2 times the gradient of one, and no loss: right where the loss "
    "is to be summed",
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
