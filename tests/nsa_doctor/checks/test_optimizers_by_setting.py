"""Builders whose choice hangs on a setting, and ones that reach outside, are left alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.oddly_grouped import DIM, Base
from tests.nsa_doctor.small_subjects import small_subject


class ByAFlag(Base):
    is_frozen = True

    def configure_optimizers(self) -> Optimizer:
        if self.is_frozen and self.training:
            return AdamW(self.out.parameters())
        return AdamW(self.parameters())


class Freezes(Base):
    def get_param_groups(self, lr: float, freeze_into: bool = True) -> list[dict[str, Any]]:
        return [{"params": [p for n, p in self.named_parameters() if not (freeze_into and "into" in n)], "lr": lr}]


class ByName(Base):
    def get_optimizer(self, name: str = "main") -> Optimizer:
        return {"main": lambda: Adam(self.out.parameters()), "other": lambda: Adam(self.into.parameters())}[name]()


class KeepsTheOther(Base):
    """The second optimizer is kept beside, and the first returned."""

    def setup_optimizers(self) -> Optimizer:
        first = {id(p) for p in (*self.out.parameters(), *self.norm.parameters())}
        self.rest = {"rest": SGD([p for p in self.parameters() if id(p) not in first], lr=0.1)}
        return SGD([p for p in self.parameters() if id(p) in first], lr=0.1)


def written(name: str) -> None:
    Path(name).write_text("written", encoding="utf-8")


class Writes(Base):
    def configure_optimizers(self) -> Optimizer:
        Path("written").write_text("written", encoding="utf-8")
        return AdamW(self.parameters())


class WritesByAnother(Base):
    def configure_optimizers(self) -> Optimizer:
        written("written")
        return AdamW(self.parameters())


class Endless(Base):
    def configure_optimizers(self) -> Any:
        while True:
            yield {"params": list(self.parameters())}


@pytest.mark.parametrize("make", [ByAFlag, Freezes, ByName, KeepsTheOther, Writes, WritesByAnother, Endless])
def test_what_hangs_on_a_setting_or_reaches_out_is_left_alone(
    make: Callable[[], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_check(registry.load("GRD231"), small_subject(make, width=DIM, max_length=64))
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), result
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_no_setting_speaks_of_is_found() -> None:
    class Forgets(Base):
        def configure_optimizers(self) -> Optimizer:
            return AdamW([*self.into.parameters(), *self.out.parameters(), *self.norm.parameters()])

    (finding,) = run_check(registry.load("GRD231"), small_subject(Forgets, width=DIM, max_length=64)).findings
    assert "leaves out 1 parameter (scale)" in finding.message
    assert torch.is_grad_enabled()
