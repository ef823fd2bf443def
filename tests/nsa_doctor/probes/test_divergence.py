"""Where two runs diverge is named at what computes it, whatever views, loops and extra operations lie in between."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, BLOCK = 32, 16


class Sums(nn.Linear):
    """Sums of positive features of earlier tokens, with a slip or without."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(super().forward(x))


def halves(y: Tensor) -> tuple[Tensor, Tensor]:
    return y[:, :-1], y[:, -1:]


def shifted_by_a_token(y: Tensor) -> Tensor:
    y = y - y.amax(1, keepdim=True)  # here
    sums = pad(y.exp().cumsum(1), (0, 0, 1, 0))
    earlier, _last = halves(sums)
    return earlier.log1p()


def token_by_token(y: Tensor) -> Tensor:
    y = y - y.max()  # here
    state, outputs = torch.zeros_like(y[:, :1]), []
    for one, other in zip(y.split(1, dim=1), y.tanh().split(1, dim=1), strict=True):
        state = state + one.exp()
        outputs.append(state * other)
    return torch.cat(outputs, dim=1)


def in_blocks(y: Tensor) -> Tensor:
    """Attention within blocks, whose filling is hidden only where some was needed; each block sees one that is none."""
    missing = -y.shape[1] % BLOCK
    blocks = pad(y, (0, 0, 0, missing)).unflatten(1, (-1, BLOCK))
    seen = torch.cat((torch.zeros_like(blocks), blocks), dim=2)
    is_real = torch.arange(2 * BLOCK, device=y.device) >= BLOCK
    rows = torch.arange(BLOCK, device=y.device)
    hidden = torch.cat((torch.zeros_like(rows), rows))[None] > rows[:, None]
    scores = (blocks @ seen.mT).masked_fill(hidden, -1e30)
    if missing:
        scores = scores.masked_fill(~is_real, -1e30)  # here
    return (scores.softmax(-1) @ seen).flatten(1, 2)[:, : y.shape[1]]


def looked_ahead(y: Tensor) -> Tensor:
    filled = pad(y, (0, 0, 0, 1))
    return filled[:, 1:].cumsum(1)  # here


def by_experts(y: Tensor) -> Tensor:
    """Rows that are chosen for each expert are spread again; the choice reads later tokens."""
    weights, chosen = y[..., :4].softmax(1).topk(2, -1)  # here
    weights, chosen, rows = weights.flatten(0, 1), chosen.flatten(0, 1), y.flatten(0, 1)
    output = torch.zeros_like(rows)
    for expert in range(4):
        row, slot = torch.where(chosen == expert)
        output = output.index_add(0, row, (expert + rows[row]).tanh() * weights[row, slot, None])
    return output.view_as(y)


def of_a_table(y: Tensor) -> Tensor:
    """Asks for memory, which that mode of torch's fills, and writes into it part by part."""
    table = torch.empty_like(y)
    for start in range(0, y.shape[1], 8):
        table[:, start : start + 8] = y[:, start : start + 8].cumsum(1)
    return table * 1.01 if torch.are_deterministic_algorithms_enabled() else table  # here


class Shifts(nn.Module):
    def back(self, y: Tensor) -> Tensor:
        return y.roll(-1, 1)  # here


class Calls(nn.Linear):
    """Asks a part by a method that is not its forward."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.part = Shifts()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.back(super().forward(x))


class Limited(nn.Linear):
    """Leaves tokens out while it trains, by a method that nothing else calls."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def allowed(self, y: Tensor) -> Tensor:
        at = torch.arange(y.shape[1], device=y.device)
        return (at % 3 != 2)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training:
            y = y * self.allowed(y)  # here
        return y


CASES = {
    "FWD201-max behind views": ("FWD201", shifted_by_a_token),
    "FWD201-max behind a loop": ("FWD201", token_by_token),
    "FWD202-mask in one run alone": ("FWD202", in_blocks),
    "FWD201-slice that looks ahead": ("FWD201", looked_ahead),
    "FWD201-softmax behind a choice": ("FWD201", by_experts),
    "FWD212-behind memory asked for": ("FWD212", of_a_table),
}


def found(code: str, make: Callable[[], nn.Module]) -> list[Finding]:
    subject = small_subject(make, width=WIDTH, max_length=128, profile="smoke" if code == "FWD201" else "quick")
    return list(run_check(registry.load(code), subject).findings)


@pytest.mark.parametrize("case", CASES)
def test_the_line_that_lets_two_runs_diverge_is_named(case: str) -> None:
    code, mix = CASES[case]
    (finding,) = found(code, lambda: Sums(mix))
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding


def test_a_method_of_a_part_is_named_that_the_whole_calls() -> None:
    (finding,) = found("FWD201", Calls)
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding


def test_where_a_method_is_entered_that_one_mode_alone_enters_is_named() -> None:
    (finding,) = found("FWD207", Limited)
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding
