"""`--train`: a training step of the user's own is examined with the module it trains."""

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Verdict
from nsa_doctor.subject.contract import Subject, SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked
from tests.nsa_doctor.small_subjects import small_subject

Doctor = Callable[..., subprocess.CompletedProcess[str]]
Trained = Callable[[str], Subject]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """`trained("right")` is the token model of `faulty.steps` with the training step of that name."""
    monkeypatch.syspath_prepend(HERE)

    def subject(step: str) -> Subject:
        asked = SubjectRequest(
            spec="faulty.steps:Model", train=f"faulty.steps:{step}", input="tokens", width=61, lengths=(16,)
        )
        return replace(load_subject(asked), profile="smoke")

    return subject


def findings(subject: Subject, code: str = "GRD209") -> tuple[Finding, ...]:
    result = run_check(registry.load(code), subject)
    assert result.verdict in (Verdict.PASS, Verdict.FAIL), result.reason
    return result.findings


@pytest.mark.parametrize(("step", "operation"), [("clips_too_late", "mul_"), ("clamps_too_late", "clamp_")])
def test_gradients_that_are_changed_after_the_step_are_found_with_their_line(
    step: str, operation: str, trained: Trained
) -> None:
    (finding,) = findings(trained(step))
    assert str(finding.evidence["operation"]).endswith(operation)
    assert is_marked(finding.where.file, finding.where.line)


def test_a_step_that_takes_one_dtype_alone_is_examined_in_it(trained: Trained) -> None:
    assert findings(trained("in_float32"), "GRD206") == ()
    (finding,) = findings(trained("climbs_in_float32"), "GRD206")
    assert "the loss on the same batch rises" in finding.message


def test_what_skips_its_step_is_found_where_it_ends(trained: Trained) -> None:
    (finding,) = findings(trained("skips_what_is_finite"), "GRD205")
    assert finding.message.endswith("the optimizer given is never asked to step")
    assert is_marked(finding.where.file, finding.where.line)


def test_parameters_that_no_optimizer_holds_are_found_where_it_is_made(trained: Trained) -> None:
    (finding,) = findings(trained("holds_matrices_alone"), "GRD205")
    assert "the optimizer that steps (SGD, of its own) does not hold them" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(("step", "operation"), [("clips_each_part", "mul_"), ("clamps_each_part", "clamp_")])
def test_gradients_that_are_limited_before_all_are_summed_are_found_with_their_line(
    step: str, operation: str, trained: Trained
) -> None:
    (finding,) = findings(trained(step))
    assert str(finding.evidence["operation"]).endswith(operation)
    assert "before the last backward pass" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


RIGHT = ("right", "logs_the_norm", "clears_in_place_and_adds_up", "skips_and_goes_on", "keeps_a_mean")


@pytest.mark.parametrize("step", RIGHT)
def test_what_is_right_is_left_alone(step: str, trained: Trained) -> None:
    assert findings(trained(step)) == ()


def test_the_step_is_part_of_the_line_that_reproduces_a_finding(trained: Trained) -> None:
    (finding,) = findings(trained("shifts_twice"), "GRD207")
    assert "--train faulty.steps:shifts_twice" in finding.repro
    assert finding.where.function == "loss_of"


class InParts(nn.Module):
    """Maps of each token; a step that calls them one by one calls no forward of this."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 8), nn.Linear(8, 61)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


def in_parts(step: Callable[[nn.Module, torch.optim.Optimizer, Tensor], Tensor]) -> Subject:
    return small_subject(InParts, input="tokens", width=61, max_length=64, train_step=step)


@pytest.mark.parametrize(("off", "wrong"), [(1, 0), (0, 1)])
@pytest.mark.parametrize("lay", ["rows", "channels first"])
def test_a_step_that_calls_parts_of_the_module_is_asked_for_its_targets(off: int, wrong: int, lay: str) -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        logits, targets = module.head(module.embed(ids[:, : ids.shape[1] - off])), ids[:, off:]
        if lay == "channels first":
            logits = logits.mT
        else:
            logits, targets = logits.flatten(0, 1), targets.flatten()
        loss = cross_entropy(logits, targets)
        loss.backward()
        return loss

    messages = [each.message for each in findings(in_parts(step), "GRD207")]
    assert [each.startswith("targets are the tokens just read") for each in messages] == [True] * wrong


@pytest.mark.parametrize("is_shifted", [True, False])
def test_a_step_that_puts_a_token_before_the_first_predicts_each_from_those_before_it(is_shifted: bool) -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        start = torch.zeros_like(ids[:, :1])
        given = torch.cat((start, ids[:, :-1]), 1) if is_shifted else ids
        loss = cross_entropy(module.head(module.embed(given)).mT, ids)
        loss.backward()
        return loss

    messages = [each.message for each in findings(in_parts(step), "GRD207")]
    assert [each.startswith("targets are the tokens just read") for each in messages] == [True] * (not is_shifted)


@pytest.mark.parametrize("what", ["given by name", "not finite"])
def test_logits_that_cannot_be_read_end_nothing(what: str) -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        logits, targets = module.head(module.embed(ids[:, :-1])).mT, ids[:, 1:]
        if what == "given by name":
            loss = cross_entropy(input=logits, target=targets)
        else:
            hidden = torch.arange(logits.shape[-1]) == 3
            loss = cross_entropy(logits.masked_fill(hidden, torch.nan), targets)
        loss.backward()
        return loss

    result = run_check(registry.load("GRD207"), in_parts(step))
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), result.reason
    assert not result.findings


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("of_one_argument", "must be a function step"),
        ("nowhere", "has no nowhere"),
        ("VOCABULARY", "must be a function step"),
    ],
)
def test_what_is_no_training_step_is_refused(step: str, words: str, trained: Trained) -> None:
    with pytest.raises(SubjectUnusableError, match=f"--train faulty.steps:{step} .*{words}"):
        trained(step)


def test_the_command_line_examines_a_step(doctor: Doctor) -> None:
    words = ("--subject", "faulty.steps:Model", "--input", "tokens", "--width", "61", "--select", "GRD209", "--quiet")
    done = doctor("run", *words, "--train", "faulty.steps:clips_too_late")
    assert done.returncode == 1
    assert "in clips_too_late" in done.stdout
