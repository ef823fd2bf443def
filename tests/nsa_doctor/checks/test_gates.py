"""Gates are found by what they compute; each way to be ill has its name, and what only looks like a gate has none."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.nsa_like import DIM, Glu, Routed, Weigher

CODES = [entry.manual.code for entry in registry.select(("GAT",), (), "full")]
FAULTY = {
    ("zero twice", "softmax"): "GAT101",
    ("zero twice", "sigmoid"): "GAT101",
    ("constant input", "softmax"): "GAT102",
    ("bias frozen in", "sigmoid"): "GAT102",
    ("hot", "softmax"): "GAT102",
    ("cold", "softmax"): "GAT103",
    ("huge", "sigmoid"): "GAT103",
    ("shut", "softmax"): "GAT104",
    ("left lost", "softmax"): "GAT104",
    ("no grad", "softmax"): "GAT105",
}


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    return Subject(
        name="gate",
        build=build,
        forward=lambda module, x: answer[0] if isinstance(answer := module(x), tuple) else answer,
        input="embeddings",
        width=DIM,
        packages=("tests",),
    )


@pytest.mark.parametrize(("case", "code"), FAULTY.items(), ids=lambda value: str(value).replace(" ", "-"))
def test_an_ill_gate_is_found_in_its_layer(case: tuple[str, str], code: str) -> None:
    result = run_check(registry.load(code), subject_of(lambda: Weigher(*case)))
    assert result.verdict is Verdict.FAIL, result.reason
    assert result.findings[0].where.module == ("" if case[0] == "left lost" else "score")
    assert result.findings[0].where.line > 0


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "softmax": Weigher,
    "sigmoid": lambda: Weigher(kind="sigmoid"),
    "router-with-an-unused-expert": Routed,
    "wide-gates-and-scalars-at-zero": Glu,
    "gru": lambda: nn.GRU(DIM, DIM, batch_first=True),
    "lstm": lambda: nn.LSTM(DIM, DIM, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_what_is_no_ill_gate_is_left_alone(make: Callable[[], nn.Module]) -> None:
    subject = subject_of(make)
    found = {code: run_check(registry.load(code), subject) for code in CODES}
    wrong = (Verdict.FAIL, Verdict.CRASH)
    assert {code: result.findings for code, result in found.items() if result.verdict in wrong} == {}


def test_a_zero_weight_with_a_chosen_bias_is_a_note_that_a_step_clears() -> None:
    result = run_check(registry.load("GAT102"), subject_of(lambda: Weigher("zero weight")))
    assert result.verdict is Verdict.PASS
    assert "until an optimizer step has moved it (score (Linear)" in result.notes[0]


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_zero_gate_that_steps_move_is_one_note(kind: str) -> None:
    results = [run_check(registry.load(code), subject_of(lambda: Weigher("zero", kind))) for code in CODES]
    assert [result.verdict for result in results] == [Verdict.PASS] * len(CODES)
    (note,) = [note for result in results for note in result.notes]
    assert "score.weight and score.bias start at zero; 3 optimizer steps move them (score (Linear) at" in note


def test_a_zero_gate_that_steps_do_not_move_says_so() -> None:
    result = run_check(registry.load("GAT101"), subject_of(lambda: Weigher("zero twice")))
    assert "score.weight and score.bias are exactly zero: every weight is 0.5" in result.findings[0].message
    assert "3 optimizer steps do not make it depend on its input" in result.findings[0].message
    assert result.findings[0].evidence["a step moves it"] is False


def test_a_zero_gate_on_offer_is_found_though_a_step_moves_it() -> None:
    subject = subject_of(lambda: Weigher("zero"))
    offered = replace(
        subject, gate=lambda module, x: module.score(torch.tanh(module.hidden(x)))[..., None, :].softmax(-1)
    )
    result = run_check(registry.load("GAT101"), offered)
    assert result.findings[0].evidence["a step moves it"] is True


def test_a_gate_on_offer_is_judged_where_none_is_seen(small: Subject) -> None:
    constant = replace(
        small, gate=lambda module, x: 0 * x[..., None, :3] + 1 / 3, build=lambda seed: Hidden(small, seed)
    )
    constant = replace(constant, forward=lambda module, x: module(x))
    assert run_check(registry.load("GAT102"), constant).verdict is Verdict.FAIL


class Hidden(nn.Module):
    """A mixer in which no gate can be seen."""

    def __init__(self, subject: Subject, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(subject.width, subject.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize("seed", range(3))
def test_the_gate_of_nsa_is_well_whatever_the_seed(seed: int, small: Subject) -> None:
    found = {code: run_check(registry.load(code), replace(small, seed=seed)) for code in CODES}
    assert {code: result.findings for code, result in found.items() if result.verdict is not Verdict.PASS} == {}


@pytest.mark.parametrize(
    ("bias", "has_weights", "verdict"),
    [
        (10.0, False, Verdict.PASS),
        (-10.0, False, Verdict.FAIL),
        (30.0, False, Verdict.FAIL),
        (10.0, True, Verdict.FAIL),
    ],
    ids=["held open", "held shut", "rounded to one", "open by what it is given"],
)
def test_a_gate_that_its_bias_holds_open_for_a_start_is_a_note(
    bias: float, has_weights: bool, verdict: Verdict
) -> None:
    class Gated(nn.Module):
        """Each head is multiplied by a gate."""

        def __init__(self) -> None:
            super().__init__()
            self.gate, self.project = nn.Linear(DIM, 4), nn.Linear(DIM, DIM)
            if not has_weights:
                nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.project(x).unflatten(-1, (4, -1))
            return (heads * torch.sigmoid(self.gate(x))[..., None]).flatten(-2)

    result = run_check(registry.load("GAT103"), subject_of(Gated))
    assert result.verdict is verdict, result.reason
    assert ["its bias alone holds it open" in each for each in result.notes] == [True] * (verdict is Verdict.PASS)
