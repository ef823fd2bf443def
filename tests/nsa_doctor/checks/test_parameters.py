"""Parameters that cannot learn in foreign modules and training loops; those that rightly do not are passed over."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Verdict
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

Measurer = Callable[[str], LocalMeasurer]
CODES = ("GRD201", "GRD202", "GRD203")
FAULTY = [  # name, the one code that finds it, module, what the message says
    ("detached_weights", "GRD201", "part", "detach cuts the way back"),
    ("no_grad_scores", "GRD201", "part.q", "linear cuts the way back"),
    ("copied_weight", "GRD201", "part", "data cuts the way back"),
    ("scale_as_number", "GRD201", "part", "item cuts the way back"),
    ("through_numpy", "GRD201", "part", "detach cuts the way back"),
    ("switch", "GRD201", "part", "through a comparison"),
    ("thrown_away", "GRD201", "part.gate", "nothing computed from it reaches the output"),
    ("thrown_away_later", "GRD201", "part", "4 parameters (part.first.weight, part.first.bias, part.second.weight, …)"),
    ("forgotten_in_backward", "GRD201", "part", "part.weight"),
    ("token_model", "GRD201", "", "positions"),
    ("zero_hook", "GRD202", "part.linear", "2 parameters"),
    ("zero_backward", "GRD202", "part", "6 parameters"),
    ("low_rank", "GRD202", "part", "moved off zero together"),
    ("low_rank_of_returns", "GRD202", "part.adapter.0", "moved off zero together"),
    ("clamped", "GRD202", "part", "other values there change the output"),
    ("renormalised", "GRD202", "part", "2 parameters (part.router.weight, part.router.bias) is rounding alone"),
    ("renormalised_in_float32", "GRD202", "part", "2 parameters (part.router.weight, part.router.bias)"),
    ("plain_list", "GRD203", "part", "the attribute layers of _PlainList"),
    ("one_of_two_frozen", "GRD203", "part", "2 trainable tensors, held by the attribute layers of _OneOfTwoFrozen"),
    ("plain_attribute", "GRD203", "part", "table['scale']"),
    ("product", "GRD203", "part", "the attribute weight of _Product"),
    ("fresh_parameter", "GRD203", "part", "created again in every forward pass"),
]
HEALTHY = [
    "experts",
    "dense_experts",
    "zero_projection",
    "returns_left_out",
    "kinds_left_out",
    "sometimes_dropped",
    "indexer",
    "indexer_with_loss",
    "key_bias",
    "sparse",
    "spare_parts",
    "asked_for_its_dtype",
    "embeddings",
    "quantised",
    "constants",
    "for_later",
    "top_two",
    "top_one_with_loss",
    "bias_before_norm",
    "faint_part",
    "frozen_in_a_list",
    "sparse_gradients",
]


def findings(code: str, subject: Subject) -> tuple[Finding, ...]:
    result = run_check(registry.load(code), subject)
    assert result.verdict in (Verdict.PASS, Verdict.FAIL), result.reason
    return result.findings


@pytest.mark.parametrize(("name", "code", "module", "said"), FAULTY, ids=[case[0] for case in FAULTY])
def test_a_parameter_that_cannot_learn_is_found_once(
    name: str, code: str, module: str, said: str, faulty: Measurer
) -> None:
    subject = faulty(f"parameters:{name}").subject
    found = [finding for each in CODES for finding in findings(each, subject)]
    assert [finding.code for finding in found] == [code]
    (finding,) = found
    assert said in finding.message
    assert is_marked(finding.where.file, finding.where.line)
    assert finding.where.module == module
    assert finding.where.module_class


@pytest.mark.parametrize("name", HEALTHY)
def test_a_parameter_that_learns_or_rightly_does_not_is_passed_over(name: str, faulty: Measurer) -> None:
    subject = faulty(f"parameters_healthy:{name}").subject
    assert [finding for code in CODES for finding in findings(code, subject)] == []


@pytest.mark.parametrize("name", ["causal", "token_model", "frozen", "no_parameters", "dict_output"])
def test_odd_but_right_modules_are_passed_over(name: str, faulty: Measurer) -> None:
    subject = faulty(f"healthy:{name}").subject
    assert [finding for code in CODES for finding in findings(code, subject)] == []


Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Tensor]


def looped(faulty: Measurer, step: Step) -> Subject:
    return replace(faulty("healthy:causal").subject, train_step=step)


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    return (module(x) - x.roll(1, 1)).square().mean()


def healthy_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, x)
    loss.backward()
    optimizer.step()
    return loss


def clipped_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss = loss_of(module, x)
    (loss * 8).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach()


class _Warm:
    """A warm-up whose first rate is zero."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
        for group in optimizer.param_groups:
            group["lr"] = min(self.count, 10) * 0.01
        self.count += 1
        return float(healthy_step(module, optimizer, x))


def half_cleared_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    module.before.zero_grad()
    loss = loss_of(module, x)
    loss.backward()
    optimizer.step()  # here
    return loss


def cleared_before_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss = loss_of(module, x)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()  # here
    return loss


def never_steps(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, x)
    loss.backward()
    return loss  # here


def replaced_head(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    module.after.weight = nn.Parameter(module.after.weight.detach().clone())
    return healthy_step(module, optimizer, x)


def climbs(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, x)
    loss.backward()
    for parameter in module.parameters():
        parameter.grad.neg_()
    optimizer.step()  # here
    return loss


@pytest.mark.parametrize("code", ["GRD204", "GRD205", "GRD206"])
@pytest.mark.parametrize("step", [healthy_step, clipped_step, _Warm()], ids=["healthy", "clipped", "warm"])
def test_a_loop_that_descends_is_passed_over(step: Step, code: str, faulty: Measurer) -> None:
    assert findings(code, looped(faulty, step)) == ()


@pytest.mark.parametrize(
    ("step", "code", "said"),
    [
        (half_cleared_step, "GRD204", "2 parameters (after.weight, after.bias) of 4; 1 times the first step's"),
        (cleared_before_step, "GRD205", "no gradients or only zeros"),
        (never_steps, "GRD205", "the optimizer given is never asked to step"),
        (replaced_head, "GRD205", "after.weight"),
        (climbs, "GRD206", "rises from"),
    ],
    ids=["half_cleared", "cleared_before_step", "never_steps", "replaced_head", "climbs"],
)
def test_a_loop_that_does_not_descend_is_found(step: Step, code: str, said: str, faulty: Measurer) -> None:
    subject = looped(faulty, step)
    (finding,) = [f for each in ("GRD204", "GRD205", "GRD206") for f in findings(each, subject)]
    assert finding.code == code
    assert said in finding.message
    assert finding.where.module_class
    if finding.where.file:
        assert is_marked(finding.where.file, finding.where.line)
