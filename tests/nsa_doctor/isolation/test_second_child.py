"""A child that takes the place of another knows the subject as that one found it, and looks at as much of it."""

from pathlib import Path

import pytest

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Verdict
from nsa_doctor.isolation.supervisor import Supervisor

SUBJECT = """
from torch import nn

class Mixer(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y + y.roll(-1, 1) if x.shape[1] > 2048 else y

def make():
    return Mixer(8, 8)
"""


def test_it_looks_at_sequences_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_in_long_ones.py").write_text(SUBJECT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    request = ExaminationRequest(spec="wrong_in_long_ones:make", input="embeddings", width=8, explore=True, threads=1)
    supervisor = Supervisor(request)
    assert [each.trouble for each in supervisor.load()] == []
    verdicts = []
    for _ in range(2):
        verdicts.append(supervisor.check("FWD224", 60.0).verdict)
        supervisor.close()
    assert verdicts == [Verdict.FAIL] * 2
