"""A variable that breaks a subject is found where it is read; one that chooses something is a note."""

import linecache
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

NAME = "TESTS_OF_VARIABLES"


class Reads(nn.Linear):
    """A layer with an effect where a variable is set."""

    def __init__(self, effect):
        super().__init__(8, 8)
        self.effect = effect

    def forward(self, x):
        y = super().forward(x)
        return self.effect(y) if os.getenv(NAME) else y


class ReadsWhenMade(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.mixes = os.environ.get(NAME, "0") == "1"

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0, keepdim=True) if self.mixes else y


def examined(make) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8, max_length=64)
    return run_check(registry.load("FWD214"), replace(made, packages=("tests",)))


def refuses(y):
    raise ValueError("no such setting")


WRONG = {
    "nan": (lambda y: y / 0, "makes the output not finite"),
    "rows": (lambda y: y.roll(1, 0), "has a row depend on the others"),
    "future": (lambda y: y.roll(-1, 1), "has later tokens change earlier ones"),
    "gradient": (lambda y: (y + y.detach()) / 2, "gives the same output and other gradients"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_variable_that_breaks_the_output_is_found(name: str) -> None:
    effect, words = WRONG[name]
    (finding,) = examined(lambda: Reads(effect)).findings
    assert finding.message.startswith(f"{NAME}=1, which is read at test_variables.py:")
    assert words in finding.message
    line = linecache.getline(__file__, finding.where.line).strip()
    assert (finding.where.file, line.partition(" y: ")[0]) == (__file__, f'"{name}": (lambda')


def test_a_variable_that_is_read_when_the_module_is_made_is_varied() -> None:
    (finding,) = examined(ReadsWhenMade).findings
    assert "has a row depend on the others" in finding.message


def test_a_variable_that_is_set_is_varied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "1")
    assert examined(lambda: Reads(lambda y: 2 * y)).notes[-1].startswith(f"{NAME} unset changes the output")


@pytest.mark.parametrize(
    ("effect", "words"), [(lambda y: 2 * y, "=1 changes the output"), (refuses, "=1 makes it raise ValueError")]
)
def test_a_variable_that_chooses_or_is_refused_is_a_note(effect, words: str) -> None:
    result = examined(lambda: Reads(effect))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert words in result.notes[0]


@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 8), lambda: Reads(lambda y: y.clone())])
def test_what_changes_nothing_is_silent(make) -> None:
    result = examined(make)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())
    assert NAME not in os.environ
