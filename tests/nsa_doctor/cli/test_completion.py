"""A shell is offered commands, codes and the values of options."""

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.registry import manuals


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("nsa-doctor go", {"go-no-go"}),
        ("nsa-doctor run --profile s", {"smoke"}),
        ("nsa-doctor explain FWD20", {f"FWD20{number}" for number in range(1, 10)}),
        ("nsa-doctor run --select FWD20", {f"FWD20{number}" for number in range(1, 10)}),
        ("nsa-doctor run --select FW", {"FWD", *(code for code in manuals() if code.startswith("FW"))}),
        ("nsa-doctor run --ignore NAN,GAT10", {f"NAN,GAT10{number}" for number in range(1, 6)}),
        ("nsa-doctor go-no-go --policy f", {"foreign", "function"}),
    ],
)
def test_what_may_follow_is_offered(
    typed: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_NSA_DOCTOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    assert serve([]) == 0
    assert set(capsys.readouterr().out.split()) == offered
