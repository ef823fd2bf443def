"""FWD228: what torch.compile makes of a module gives what the module gives, and is blamed on the line that does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject


@torch.library.custom_op("nsa_doctor_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("nsa_doctor_tests::unserved", mutates_args=())
def unserved(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("nsa_doctor_tests::scribbled", mutates_args=())
def scribbled(x: torch.Tensor) -> torch.Tensor:
    x.mul_(3)
    return x.sum()


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, gradient: gradient * 2)
unserved.register_autograd(lambda ctx, gradient: gradient * 2)
scribbled.register_fake(lambda x: x.new_empty(()))


@unserved.register_fake
def _(x):
    raise TypeError("no such size")  # FAKE


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = 1.0 if torch.compiler.is_compiling() else 0.5
        return x * 0.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale


class Layer(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)


class Scales(Layer):
    def forward(self, x):
        mixed = super().forward(x).cumsum(1)
        if torch.compiler.is_compiling():
            return mixed * 1.5  # HERE
        return mixed


class ScalesLonger(Layer):
    def forward(self, x):
        mixed = super().forward(x)
        if torch.compiler.is_compiling() and x.shape[1] > 40:
            return mixed * 1.5  # HERE
        return mixed


class Writes(Layer):
    def forward(self, x):
        mixed = super().forward(x) * 1.0
        scribbled(mixed.detach())  # HERE
        return mixed + 0


class WrongBackward(Layer):
    def forward(self, x):
        return Halved.apply(super().forward(x))  # HERE


class Unserved(Layer):
    def forward(self, x):
        return unserved(super().forward(x))


class OnePath(Layer):
    def forward(self, x):
        mixed = doubled(super().forward(x)) if torch.compiler.is_compiling() else super().forward(x) * 2
        if float(x.detach().abs().max()) > 1e6:  # a break in the graph
            return mixed * 0
        return mixed


class Stacked(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList([OnePath(), kind()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """Torch compiles a function a few times and no more, and these tests share theirs."""
    torch.compiler.reset()


def examined(kind: type[Layer]) -> Result:
    subject = small_subject(lambda: Stacked(kind), width=8, max_length=67)
    return run_check(registry.load("FWD228"), subject)


def line_of(mark: str, after: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if after in line)
    return next(number for number, line in enumerate(lines, 1) if number > start and f"# {mark}" in line)


@pytest.mark.parametrize("kind", [Scales, ScalesLonger, Writes, WrongBackward])
def test_a_part_that_compiles_to_another_is_found_at_its_line(kind: type[Layer]) -> None:
    (finding,) = examined(kind).findings
    assert finding.where.line == line_of("HERE", f"class {kind.__name__}(")
    assert finding.where.module == "layers.1"
    assert ("at S=67" in finding.message) == (kind is ScalesLonger)


def test_what_an_operator_of_its_own_raises_is_found() -> None:
    (finding,) = examined(Unserved).findings
    assert finding.message.endswith("it raises TypeError: no such size")
    assert finding.where.line == line_of("FAKE", "@unserved.register_fake")


def test_operators_and_breaks_of_graphs_are_no_fault() -> None:
    result = examined(OnePath)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


@pytest.mark.full
def test_the_built_in_layer_compiles_to_itself(small: Subject) -> None:
    result = run_check(registry.load("FWD228"), replace(small, max_length=24))
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
