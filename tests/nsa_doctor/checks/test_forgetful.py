"""FWD244: what decodes with a state and never reads it is found, and no one else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Scan(nn.Module):
    """A sum of the tokens so far of which `keeps` is kept at each token."""

    def __init__(self, keeps: float) -> None:
        super().__init__()
        self.mixed, self.keeps = nn.Linear(WIDTH, WIDTH), keeps

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.taken(x, torch.zeros_like(x[:, :1]))[0], 1)

    def taken(self, x: Tensor, state: Tensor) -> tuple[list[Tensor], Tensor]:
        """Outputs of each token, and the state behind them."""
        outputs = []
        for token in self.mixed(x).split(1, 1):
            state = self.keeps * state + token
            outputs.append(state)
        return outputs, state


Fed = Callable[..., tuple[Tensor, Any]]


def by_tokens(module: Any, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    outputs, state = module.taken(x, torch.zeros_like(x[:, :1]) if state is None else state)
    return torch.cat(outputs, 1), state


def examined(make: Callable[[], nn.Module], fed: Fed | None = by_tokens) -> Result:
    subject = small_subject(make, width=WIDTH, profile="smoke")
    return run_check(registry.load("FWD244"), replace(subject, prefill=fed, step=fed) if fed else subject)


def test_a_state_that_decays_to_nothing_at_once_is_found() -> None:
    (finding,) = examined(lambda: Scan(0.0)).findings
    assert finding.message.startswith("no output depends on an earlier token at S=")
    assert finding.where.function == "forward"


@pytest.mark.parametrize("keeps", [1.0, 0.5, 1e-3])
def test_a_state_that_is_kept_is_none(keeps: float) -> None:
    result = examined(lambda: Scan(keeps))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("size", [2, 3, 16, 33, 64])
def test_blocks_that_begin_anew_are_none(size: int) -> None:
    class Blocks(Scan):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([super(Blocks, self).forward(part) for part in x.split(size, 1)], 1)

    assert examined(lambda: Blocks(1.0)).verdict is Verdict.PASS


def test_a_position_alone_is_no_state() -> None:
    def fed(module: nn.Module, x: Tensor, state: int = 0) -> tuple[Tensor, int]:
        return module(x), state + x.shape[1]

    assert examined(lambda: nn.Linear(WIDTH, WIDTH), fed).verdict is Verdict.PASS


def test_what_does_not_decode_may_be_of_each_token_by_itself() -> None:
    assert examined(lambda: Scan(0.0), None).verdict is Verdict.SKIP


def test_a_module_that_vmap_calls_is_recorded_too() -> None:
    class Mapped(Scan):
        def __init__(self) -> None:
            super().__init__(0.0)
            self.by_row = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(self.by_row)(super().forward(x))

    def fed(module: nn.Module, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return module(x), x[:, -1:]

    assert examined(Mapped, fed).verdict is Verdict.FAIL
