"""Copies that are to follow slowly and are moved nearly all of the way at each call (GRD234)."""

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

GRD234 = registry.load("GRD234")
Move = Callable[["Averaged"], None]


class Averaged(nn.Module):
    """A layer, a copy that is not trained, and what `move` does to it."""

    def __init__(self, move: Move, is_trained: bool = False) -> None:
        super().__init__()
        self.move, self.num_updates = move, 0
        self.online = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        self.target = copy.deepcopy(self.online).requires_grad_(is_trained)

    def forward(self, x: Tensor) -> Tensor:
        return self.online(x)

    @torch.no_grad()
    def update_target(self) -> None:
        self.num_updates += 1
        self.move(self)

    @property
    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return list(zip(self.target.parameters(), self.online.parameters(), strict=True))


class Momentum(Averaged):
    """The same under another name."""

    def _momentum_update_key_encoder(self) -> None:
        self.update_target()


def at_once(module: Averaged) -> None:
    for slow, fast in module.pairs:
        slow.lerp_(fast, 0.99)


def by_product(module: Averaged) -> None:
    for slow, fast in module.pairs:
        slow.data.mul_(1 - 0.995).add_(fast.data, alpha=0.995)


def by_assignment(module: Averaged) -> None:
    for slow, fast in module.pairs:
        slow.data = 0.1 * slow.data + 0.9 * fast.data


def by_state(module: Averaged) -> None:
    slow, fast = module.target.state_dict(), module.online.state_dict()
    module.target.load_state_dict({name: 0.04 * slow[name] + 0.96 * fast[name] for name in slow})


def slowly(module: Averaged) -> None:
    for slow, fast in module.pairs:
        slow.lerp_(fast, 1 - 0.99)


def half_way(module: Averaged) -> None:
    for slow, fast in module.pairs:
        slow.lerp_(fast, 0.5)


def whole(module: Averaged) -> None:
    module.target.load_state_dict(module.online.state_dict())


def whole_now_and_then(module: Averaged) -> None:
    if module.num_updates % 10 == 0:
        whole(module)


def warming_up(module: Averaged) -> None:
    decay = min(0.999, (1 + module.num_updates) / (10 + module.num_updates))
    for slow, fast in module.pairs:
        slow.lerp_(fast, 1 - decay)


def nothing(module: Averaged) -> None:
    """It is moved elsewhere."""


def raises(module: Averaged) -> None:
    raise RuntimeError("not before training")


def examined(move: Move, kind: type[Averaged] = Averaged, **others: bool) -> Result:
    return run_check(GRD234, small_subject(lambda: kind(move, **others), width=8))


@pytest.mark.parametrize(
    ("move", "share"), [(at_once, "0.99"), (by_product, "0.995"), (by_assignment, "0.9"), (by_state, "0.96")]
)
@pytest.mark.parametrize("kind", [Averaged, Momentum])
def test_a_copy_that_follows_at_once_is_found(move: Move, share: str, kind: type[Averaged]) -> None:
    (found,) = examined(move, kind).findings
    assert f"moves target {share} of the way to online at a call: the copy follows at once" in found.message


@pytest.mark.parametrize("move", [at_once, by_product])
def test_the_line_that_writes_is_named(move: Move) -> None:
    (found,) = examined(move).findings
    lines, first = inspect.getsourcelines(move)
    assert found.where.line == first + len(lines) - 1


@pytest.mark.parametrize("move", [slowly, half_way, whole, whole_now_and_then, warming_up, nothing, raises])
def test_a_copy_that_follows_slowly_or_is_taken_whole_is_silent(move: Move) -> None:
    result = examined(move)
    assert not result.findings
    assert result.verdict is Verdict.PASS


def test_what_is_trained_itself_is_no_copy() -> None:
    assert not examined(at_once, is_trained=True).findings


def test_the_subject_itself_is_not_moved() -> None:
    module = Averaged(at_once)
    assert len(run_check(GRD234, small_subject(lambda: module, width=8)).findings) == 1
    assert module.num_updates == 0
    assert all(torch.equal(slow, fast) for slow, fast in module.pairs)
