"""Experts that do not follow their router are found; every usual way to route is silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, EXPERTS = 8, 4


class Mixture(nn.Module):
    """Each token by its two best experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def chosen(self, scores: Tensor, number: int) -> Tensor:
        """Which tokens [N] an expert gets."""
        return (scores.topk(2, dim=-1).indices == number).any(-1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        scores, answer = self.router(rows).softmax(-1), torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            chosen = self.chosen(scores, number)
            if bool(chosen.any()):
                answer[chosen] += scores[chosen, number, None] * expert(rows[chosen])
        return x + answer.view_as(x)


class Least(Mixture):
    def chosen(self, scores: Tensor, number: int) -> Tensor:
        return (scores.topk(1, dim=-1, largest=False).indices == number).any(-1)


class Others(Mixture):
    """Every slot that names another expert."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, index = self.router(rows).softmax(-1).topk(2, dim=-1)
        answer = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(index != number)
            answer = answer.index_add(0, token, weights[token, slot, None] * expert(rows[token]))
        return x + answer.view_as(x)


class Sorted(Mixture):
    """Sorts tokens by their expert, and takes the choices without the order."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        chosen = self.router(rows).argmax(-1)
        counts = torch.bincount(chosen, minlength=EXPERTS).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, rows.split(counts), strict=True)]
        return x + torch.cat(parts).view_as(x)


class Dense(Mixture):
    def chosen(self, scores: Tensor, number: int) -> Tensor:
        return torch.ones_like(scores[:, 0], dtype=torch.bool)


class ByExpert(Mixture):
    """Each expert takes a quarter of the tokens."""

    def chosen(self, scores: Tensor, number: int) -> Tensor:
        best = scores[:, number].topk(max(1, len(scores) // EXPERTS)).indices
        return torch.zeros_like(scores[:, 0], dtype=torch.bool).index_fill(0, best, True)


class Balanced(Mixture):
    """Scores that are made even over experts first; the router alone would send all to one."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.router.bias[1] += 20

    def chosen(self, scores: Tensor, number: int) -> Tensor:
        even = scores.log()
        for _ in range(30):
            even = (even - even.logsumexp(0)).log_softmax(-1)
        return even.argmax(-1) == number


class Hashed(Mixture):
    """Chooses by what a token is and not by scores."""

    def __init__(self) -> None:
        super().__init__()
        self.router = None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        chosen, answer = (rows[:, 0] * 1e3).long() % EXPERTS, torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            answer[chosen == number] = expert(rows[chosen == number])
        return x + answer.view_as(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD257"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize(
    ("make", "says"),
    [(Least, "the one that it scores lowest"), (Others, "the one that it scores lowest"), (Sorted, "any other")],
)
def test_experts_that_do_not_follow_are_found(make: Callable[[], nn.Module], says: str) -> None:
    (finding,) = examined(make).findings
    assert says in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("make", [Mixture, Dense, ByExpert, Balanced])
def test_experts_that_follow_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


def test_a_list_of_nothing_is_no_list_of_experts() -> None:
    class Empty(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.parts = nn.ModuleList([None, None, None])

    assert "no experts were seen" in examined(Empty).reason


def test_without_a_router_nothing_is_asked() -> None:
    assert "no experts were seen" in examined(Hashed).reason
