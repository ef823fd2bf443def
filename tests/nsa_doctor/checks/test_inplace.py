"""Overwritten memory in foreign modules: found, both lines named; harmless writes are passed over."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.finding import Finding, Verdict
from nsa_doctor.engine.conclusions import with_observed
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

Measurer = Callable[[str], LocalMeasurer]
REFUSED = [  # name, module that writes, module that saved, what saved
    ("scaled_weights", "part", "part", "softmax"),
    ("detached_weights", "part", "part", "softmax"),
    ("rolling_state", "part", "part", "sin"),
    ("buffer", "part", "part", "mul"),
    ("padded_convolution", "part", "part.conv", "convolution"),
    ("residual", "part", "part.norm", "native_layer_norm"),
    ("fills_mask", "part", "part", "tanh"),
    ("foreach", "part", "part", "exp"),
    ("out_argument", "part", "part", "sigmoid"),
]
SILENT = [
    ("scaled_weights_unseen", "part"),
    ("numpy_mask", "part"),
    ("memset_values", "part"),
    ("lying_operation", "part"),
    ("kept_in_ctx", "part"),
    ("decayed_weight", "part"),
    ("written_in_backward", "part"),
    ("shared_gradient", "part"),
    ("only_long", "part"),
    ("token_model", ""),
    ("schedule", "part"),
]
HEALTHY = [
    "relu_in_place",
    "write_before_use",
    "unsaved",
    "dropout_in_place",
    "checkpointed",
    "checkpointed_reentrant",
    "masked_in_place",
    "mask_written_early",
    "saved_but_unneeded",
    "kept_in_ctx",
    "own_gradient",
    "cache",
    "average",
    "spectral_convolution",
    "recurrent",
    "straight_through",
]


def findings(code: str, subject: Subject) -> tuple[Finding, ...]:
    own, beside = run_check(registry.load(code), subject).parted()
    ended = deduplicate(with_observed([own], beside), registry.entries())  # that backward raises is one cause with it
    assert {finding.code for each in ended for finding in each.findings} <= {code}
    result = next(each for each in ended if each.code == code)
    assert result.verdict in (Verdict.PASS, Verdict.FAIL), result.reason
    return result.findings


@pytest.mark.parametrize(("name", "writer", "saver", "operation"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_refused_overwrite_names_both_lines(
    name: str, writer: str, saver: str, operation: str, faulty: Measurer
) -> None:
    subject = faulty(f"inplace:{name}").subject
    (finding,) = findings("GRD401", subject)
    assert is_marked(finding.where.file, finding.where.line)
    assert finding.where.module == writer
    assert finding.evidence["saved_operation"] == operation
    assert str(finding.evidence["saved_module"]).startswith(f"{saver} (")
    file, _, line = str(finding.evidence["saved_line"]).rpartition(":")
    source = Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert operation.removeprefix("native_layer_") in source or "conv" in source or "*" in source
    assert findings("GRD402", subject) == ()


@pytest.mark.parametrize(("name", "writer"), SILENT, ids=[case[0] for case in SILENT])
def test_a_silent_overwrite_is_found_on_its_line(name: str, writer: str, faulty: Measurer) -> None:
    subject = faulty(f"inplace:{name}").subject
    (finding,) = findings("GRD402", subject)
    assert is_marked(finding.where.file, finding.where.line)
    assert finding.where.module == writer
    assert finding.where.module_class
    assert findings("GRD401", subject) == ()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, where gradients are off
@pytest.mark.parametrize("code", ["GRD401", "GRD402"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_write_that_harms_nothing_is_passed_over(name: str, code: str, faulty: Measurer) -> None:
    assert findings(code, faulty(f"inplace_healthy:{name}").subject) == ()


def test_a_length_that_is_overwritten_is_named(faulty: Measurer) -> None:
    (finding,) = findings("GRD402", faulty("inplace:only_long").subject)
    assert finding.evidence["length"] == 131
    assert "S=131" in finding.message


def test_a_shared_version_counter_is_distinguished_from_changed_values(faulty: Measurer) -> None:
    (shared,) = findings("GRD401", faulty("inplace:buffer").subject)
    assert "shares its version counter" in shared.message
    assert shared.evidence["num_changed"] == 0
    (changed,) = findings("GRD401", faulty("inplace:fills_mask").subject)
    assert "3 of 9 values changed" in changed.message


def stepping(subject: Subject, spoil: Callable[[nn.Module, Tensor], None]) -> Subject:
    """The subject with a training loop that spoils something between forward and backward."""

    def train_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = subject.forward(module, x).square().mean()
        spoil(module, x)
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=train_step)


def test_weights_changed_between_forward_and_backward_of_a_training_loop(faulty: Measurer) -> None:
    def clipped(module: nn.Module, x: Tensor) -> None:
        module.after.weight.data.mul_(0.5)  # here

    (finding,) = findings("GRD402", stepping(faulty("healthy:causal").subject, clipped))
    assert is_marked(finding.where.file, finding.where.line)
    assert "a training step" in finding.message


def test_weights_stepped_between_forward_and_backward_of_a_training_loop(faulty: Measurer) -> None:
    def stepped(module: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            module.after.weight.mul_(0.5)  # here

    (finding,) = findings("GRD401", stepping(faulty("healthy:causal").subject, stepped))
    assert is_marked(finding.where.file, finding.where.line)


def test_a_training_loop_that_changes_weights_afterwards_is_passed_over(faulty: Measurer) -> None:
    subject = stepping(faulty("healthy:causal").subject, lambda module, x: None)
    assert findings("GRD401", subject) == findings("GRD402", subject) == ()
