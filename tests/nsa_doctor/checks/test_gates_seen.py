"""A gate is known whatever its logits meet on their way; what is gated feature by feature mixes no branches."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.gated import DIM, Elementwise, Fused, Scaled, Shaped, Tempered

CODES = [entry.manual.code for entry in registry.select(("GAT",), (), "full")]
WAYS = (
    *("buffer", "bias buffer", "bias of each head", "in place", "tensor made here", "clipped", "masked", "where"),
    *("temperature", "frozen temperature"),
)


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(name="gate", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",))


BY_SIGMOIDS = [way for way in WAYS if way not in ("masked", "where")]  # a mask of branches goes with a softmax
MET = [*((way, "softmax") for way in WAYS), *((way, "sigmoid") for way in BY_SIGMOIDS)]


@pytest.mark.parametrize(("way", "kind"), MET, ids=[f"{way} {kind}".replace(" ", "-") for way, kind in MET])
def test_a_zero_gate_is_known_whatever_its_logits_meet(way: str, kind: str) -> None:
    result = run_check(registry.load("GAT101"), subject_of(lambda: Tempered(way, kind)))
    assert len(result.notes) == 1, result
    assert result.notes[0].startswith("score.weight and score.bias start at zero; 3 optimizer steps move them (score (")


@pytest.mark.parametrize("way", WAYS)
def test_a_gate_that_starts_at_random_is_well_whatever_its_logits_meet(way: str) -> None:
    subject = subject_of(lambda: Tempered(way, is_zero=False))
    found = {code: run_check(registry.load(code), subject) for code in CODES}
    assert {code: result.verdict for code, result in found.items()} == dict.fromkeys(CODES, Verdict.PASS)


def test_a_chosen_bias_that_is_a_buffer_is_a_note() -> None:
    subject = subject_of(lambda: Tempered("bias buffer", shift=1.0))
    results = [run_check(registry.load(code), subject) for code in ("GAT101", "GAT102")]
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS]
    assert "until an optimizer step has moved it" in results[1].notes[0]


def test_a_branch_that_a_buffer_shuts_is_dead() -> None:
    subject = subject_of(lambda: Tempered("bias buffer", is_zero=False, shift=-40.0))
    (finding,) = run_check(registry.load("GAT104"), subject).findings
    assert "weight 1 of 2" in finding.message


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    **{f"elementwise {way}": lambda way=way: Elementwise(way=way) for way in ("carried", "lerp", "residual", "signed")},
    "elementwise at random": lambda: Elementwise(is_zero=False),
    **{way: lambda way=way: Scaled(way) for way in ("rezero", "layer scale", "tanh")},
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_what_is_gated_by_itself_beside_a_residual_is_left_alone(make: Callable[[], nn.Module]) -> None:
    found = {code: run_check(registry.load(code), subject_of(make)) for code in CODES}
    wrong = (Verdict.FAIL, Verdict.CRASH)
    assert {code: result.findings for code, result in found.items() if result.verdict in wrong} == {}


def test_an_elementwise_gate_that_starts_at_zero_is_a_note() -> None:
    result = run_check(registry.load("GAT101"), subject_of(Elementwise))
    assert (result.verdict, len(result.notes)) == (Verdict.PASS, 1)
    assert "gate.weight and gate.bias start at zero; 3 optimizer steps move them" in result.notes[0]


SHAPES = ("flattened", "token by token", "each with a length of one")


@pytest.mark.parametrize("way", SHAPES)
def test_a_zero_gate_is_known_however_its_tokens_are_laid_out(way: str) -> None:
    result = run_check(registry.load("GAT101"), subject_of(lambda: Shaped(way)))
    assert len(result.notes) == 1, result
    assert result.notes[0].startswith("score.weight and score.bias start at zero; 3 optimizer steps move them (score (")


@pytest.mark.parametrize("way", SHAPES)
def test_a_gate_at_random_is_well_however_its_tokens_are_laid_out(way: str) -> None:
    subject = subject_of(lambda: Shaped(way, is_zero=False))
    found = {code: run_check(registry.load(code), subject) for code in CODES}
    assert {code: result.verdict for code, result in found.items()} == dict.fromkeys(CODES, Verdict.PASS)


@pytest.mark.parametrize("is_zero", [True, False])
def test_a_gate_that_is_offered_and_not_seen_is_judged_by_its_last_layer(is_zero: bool) -> None:
    gate = lambda module, x: module.gate(x)  # noqa: E731
    result = run_check(registry.load("GAT101"), replace(subject_of(lambda: Fused(is_zero)), gate=gate))
    assert result.verdict is (Verdict.FAIL if is_zero else Verdict.PASS)
    assert all("score.weight" in finding.message for finding in result.findings)
