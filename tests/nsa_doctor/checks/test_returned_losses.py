"""A loss beside the output that trains nothing is found where it is cut; one that trains, or cannot, is left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH, EXPERTS = 8, 3


class Experts(nn.Module):
    """Each token by the likeliest expert; `loss` makes the balancing loss of probabilities and loads."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Any], keeps: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)
        self.loss, self.keeps = loss, keeps
        self.balancing_loss: Any = None

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        probs = self.router(x).softmax(-1)
        weight, chosen = probs.max(-1)
        y = torch.einsum("bsd,bsde->bse", x, self.experts[chosen]) * weight[..., None]
        load = nn.functional.one_hot(chosen, EXPERTS).to(x.dtype).mean((0, 1))
        made = self.loss(probs, load)
        if self.keeps:
            self.balancing_loss = made
            return y, {}
        return y, made if isinstance(made, dict) else {"aux_loss": made}


def balanced(probs: Tensor, load: Tensor) -> Tensor:
    return EXPERTS * (load * probs.mean((0, 1))).sum()


def detached(probs: Tensor, load: Tensor) -> Tensor:
    return EXPERTS * (load * probs.detach().mean((0, 1))).sum()


def without_grad(probs: Tensor, load: Tensor) -> Tensor:
    with torch.no_grad():
        return balanced(probs, load)


def logged_too(probs: Tensor, load: Tensor) -> dict[str, Tensor]:
    loss = balanced(probs, load)
    return {"loss": loss, "balancing_loss": loss.detach(), "z_loss_for_the_log": probs.detach().square().mean()}


def committed(probs: Tensor, load: Tensor) -> Tensor:
    return (probs - probs.detach().roll(1, -1)).square().mean()


def of_loads(probs: Tensor, load: Tensor) -> Tensor:
    return load.square().sum()


FAULTY = {"detached": detached, "without grad": without_grad}
HEALTHY = {
    "trains": balanced,
    "logged too": logged_too,
    "stops one side": committed,
    "of choices alone": of_loads,
    "constant": lambda probs, load: probs.new_zeros(()),
    "another name": lambda probs, load: {"entropy": probs.detach().log().mean()},
}


def examined(loss: Callable[[Tensor, Tensor], Any], *, keeps: bool = False, **changes: Any) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Experts(loss, keeps)

    made = {"name": "tests", "build": build, "forward": lambda m, x: m(x), "input": "embeddings", "width": WIDTH}
    return run_check(registry.load("GRD210"), Subject(**{**made, "max_length": 64, "packages": ("tests",), **changes}))


@pytest.mark.parametrize("name", FAULTY)
def test_a_returned_loss_that_trains_nothing_is_found(name: str) -> None:
    (finding,) = examined(FAULTY[name]).findings
    assert "the gradient of [1]['aux_loss'] is 0 along" in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("name", FAULTY)
def test_one_that_is_kept_may_be_for_the_log(name: str) -> None:
    result = examined(FAULTY[name], keeps=True)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "the gradient of balancing_loss is 0 along" in result.notes[0]


def test_one_that_is_detached_as_a_whole_may_be_for_the_log() -> None:
    result = examined(lambda probs, load: balanced(probs, load).detach())
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert len(result.notes) == 1


def test_the_line_that_cuts_it_is_named() -> None:
    (finding,) = examined(detached).findings
    assert finding.where.function == "detached"
    assert "detach" in finding.message


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_trains_or_cannot_is_silent(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed=seed)
    assert result.verdict in (Verdict.PASS, Verdict.SKIP)
    assert result.findings == ()
    assert not (result.verdict is Verdict.SKIP and result.is_required)
