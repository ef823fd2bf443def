"""A setting that changes what it should only compute otherwise is found; those that nobody follows are noted."""

import linecache
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE, is_marked

Examine = Callable[[str], Result]


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Examine:
    monkeypatch.syspath_prepend(HERE)

    def run(name: str) -> Result:
        spec = name if ":" in name else f"settable:{name}"
        subject = load_subject(SubjectRequest(spec=f"faulty.{spec}", lengths=(16,)))
        return run_check(registry.load("ENV104"), replace(subject, profile="quick"))

    return run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("triton", "SETTABLE_USE_TRITON=1 chooses, by its name, how something is computed"),
        ("half", "SETTABLE_WIDE=1 is read while the subject is built and again in its calls"),
    ],
)
def test_a_variable_is_named_where_it_is_read(name: str, words: str, examine: Examine) -> None:
    (finding,) = examine(name).findings
    assert words in finding.message
    assert is_marked(finding.where.file, finding.where.line)


def test_one_that_is_read_on_import_is_tried_too(examine: Examine) -> None:
    (finding,) = examine("on_import").findings
    assert finding.evidence["setting"] == "SETTABLE_USE_FUSED"
    assert finding.where.function == "<module>"


def test_an_option_is_named_where_what_it_chooses_begins(examine: Examine) -> None:
    (finding,) = examine("other_scale").findings
    assert (finding.evidence["setting"], finding.evidence["value"]) == ("Config.impl", "eager")
    assert linecache.getline(finding.where.file, finding.where.line).strip().startswith("return scaled_dot_product")
    assert "; it is declared at settable.py:" in finding.message


def test_a_path_that_passes_through_a_narrower_dtype_is_judged_by_that_dtype(examine: Examine) -> None:
    assert examine("softmax_in_float32").verdict is Verdict.PASS


def test_a_path_that_gives_the_same_passes_and_settings_without_effect_are_noted(examine: Examine) -> None:
    before = dict(os.environ)
    result = examine("healthy")
    assert result.verdict is Verdict.PASS
    (note,) = result.notes
    assert all(name in note for name in ("Config.forgotten", "Config.use_flash", "SETTABLE_USE_FUSED"))
    assert not any(name in note for name in ("impl", "normalised"))
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["imported", "default", "kept"])
def test_one_said_to_be_read_at_every_call_and_read_once_is_found(name: str, examine: Examine) -> None:
    (finding,) = examine(f"read_once:{name}").findings
    assert finding.evidence["setting"] == f"READ_ONCE_{name.upper()}"
    assert "read_once.py:1 says at every call" in finding.message
    assert is_marked(finding.where.file, finding.where.line), finding.where


@pytest.mark.parametrize("name", ["read_once:followed", "read_once_plainly:make"])
def test_one_that_is_followed_or_said_to_be_read_once_is_left_alone(name: str, examine: Examine) -> None:
    assert examine(name).verdict is Verdict.PASS


RECOMPUTING = """
import os
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recomputes():
    return os.environ.get("RECOMPUTING_CHECKPOINT", "") == "1"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(16, 16), nn.Dropout(0.5)

    def block(self, x):
        return x + self.drop(self.inner(x).tanh())

    def forward(self, x):
        if self.training and torch.is_grad_enabled() and recomputes():
            return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)
        return self.block(x)
"""


def test_a_path_that_is_taken_in_training_alone_is_named_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recomputing.py").write_text(RECOMPUTING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    subject = load_subject(SubjectRequest(spec="recomputing:Model", input="embeddings", width=16, lengths=(16,)))
    (finding,) = run_check(registry.load("ENV104"), replace(subject, profile="quick")).findings
    assert "RECOMPUTING_CHECKPOINT=1" in finding.message
    assert "checkpoint(self.block" in linecache.getline(finding.where.file, finding.where.line), finding.where
