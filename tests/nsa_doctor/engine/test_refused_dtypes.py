"""A dtype that a subject says it does not serve is no finding; what it raises in one dtype for other reasons is."""

from pathlib import Path

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report
from nsa_doctor.engine.run import RunRequest, run

SUBJECT = """
import torch
from torch import nn

class Mixer(nn.Linear):
    def forward(self, x):
        if x.dtype == torch.bfloat16:
            {statement}
        return super().forward(x)

def make():
    return Mixer(8, 8)
"""


def report(statement: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    (folder / "refusing_a_dtype.py").write_text(SUBJECT.format(statement=statement))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    request = ExaminationRequest(spec="refusing_a_dtype:make", explore=True, lengths=(16,), threads=1)
    return run(
        RunRequest(examination_request=request, checks=tuple(registry.select(("FWD101", "NAN101"), (), "quick")))
    )


@pytest.mark.parametrize(
    "statement",
    [
        'raise TypeError("bfloat16 is not served")',
        'raise ValueError(f"not supported: {x.shape}")',
        "assert x.dtype == torch.float32",
        "torch.linalg.qr(x)",
    ],
)
def test_a_dtype_that_is_refused_as_such_is_a_note(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report(statement, tmp_path, monkeypatch)
    assert found.findings == ()
    assert any(note.startswith("not examined in bfloat16: the subject does not run in it") for note in found.notes)


@pytest.mark.parametrize(
    "statement", ['raise RuntimeError(f"cannot serve {tuple(x.shape)}")', "assert x.shape[1] > 1 << 30"]
)
def test_another_trouble_in_one_dtype_is_a_finding(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = report(statement, tmp_path, monkeypatch).findings
    assert finding.code == "FWD101"
    assert "in bfloat16" in finding.message
    assert finding.where.line == 8
