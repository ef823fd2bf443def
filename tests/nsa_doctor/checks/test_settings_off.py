"""Settings that are off are named, with the line that asks for them: what they turn on no check has seen."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.settings_off import notes_of_settings_off
from nsa_doctor.core import registry
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note, Verdict
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject


class Attention(nn.Module):
    def __init__(
        self, window: int | None = None, norm: bool = False, bias: bool = False, name: str | None = None
    ) -> None:
        super().__init__()
        self.window, self.norm, self.bias, self.name = window, norm, bias, name
        self.values = nn.Linear(8, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        scores = (x / x.norm(dim=-1, keepdim=True) if self.norm else x) @ x.mT
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        if self.window is not None and x.shape[1] > self.window:
            hidden |= torch.ones_like(hidden).tril(-self.window)
        if not self.bias:
            scores = scores * 1.0
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.values(x)


def notes(*made: dict[str, Any]) -> tuple[str, ...]:
    subject = embedding_subject(lambda: nn.Sequential(*(Attention(**each) for each in made)))
    return tuple(note.message for note in notes_of_settings_off(comparable_module(subject)))


def test_what_is_none_or_false_is_named_with_its_line() -> None:
    (note,) = notes({}, {})
    begin, words = note.split(": ", 1)
    assert begin == "settings are off, and what they turn on was not examined"
    assert [each.partition(" (test_settings_off.py:")[0] for each in words.split(" and ")] == [
        "window=None",
        "norm=False",
    ]


@pytest.mark.parametrize(("made", "left"), [({"window": 3}, "norm=False"), ({"norm": True}, "window=None")])
def test_what_one_of_several_has_on_is_examined(made: dict[str, Any], left: str) -> None:
    (note,) = notes({}, made)
    assert left in note
    assert "and" not in note.split(": ", 1)[1]


def test_where_all_is_on_there_is_no_note() -> None:
    assert notes({"window": 3, "norm": True}) == ()


@pytest.mark.parametrize("is_found", [True, False])
def test_what_was_seen_before_a_check_gives_up_stands(is_found: bool, small: Subject) -> None:
    def run(subject: Subject) -> Iterator[Finding | Note]:
        yield Note(message="seen")
        if is_found:
            yield Finding(message="found")
        raise NotComparableError("nothing more can be compared")

    result = run_check(replace(registry.load("FWD243"), run=run), small)
    assert result.verdict is (Verdict.FAIL if is_found else Verdict.SKIP)
    assert [finding.message for finding in result.findings] == ["found"] * is_found
    assert result.notes == ("seen",)
    assert result.reason == ("" if is_found else "nothing more can be compared")
