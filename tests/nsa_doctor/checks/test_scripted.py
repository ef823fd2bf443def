"""Modules with parts that TorchScript compiled are examined as others are, and so is what cannot be copied."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.internal import let_scripted_take_hooks
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x)) * torch.tanh(self.values(x))


class WithAPart(nn.Module):
    """One part is compiled as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.part = torch.jit.script(Gated())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(self.norm(x))


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)

    class Cell(torch.jit.ScriptModule):
        """A cell whose forward is compiled, and whose start is not."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

        def start(self, rows: int) -> Tensor:
            return self.weight.new_zeros(rows, WIDTH)

        @torch.jit.script_method
        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return torch.tanh(x + h @ self.weight)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: Tensor) -> Tensor:
        h, states = self.cell.start(len(x)), []
        for token in x.unbind(1):
            h = self.cell(token, h)
            states.append(h)
        return torch.stack(states, 1)


def _loop(x: Tensor, h: Tensor) -> Tensor:
    states = torch.zeros_like(x)
    for t in range(x.size(1)):
        h = torch.tanh(x[:, t] + h)
        states[:, t] = h
    return states


class ScriptedLoop(nn.Module):
    """Its loop over tokens is a function that is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.loop = [torch.jit.script(_loop)]

    def forward(self, x: Tensor) -> Tensor:
        return self.loop[0](self.first(x), x.new_zeros(len(x), WIDTH))


class ReadsEach(nn.Module):
    """A loop over tokens that reads each on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.stack([token * (token.detach().sum().tolist() > 0) for token in x.unbind(1)], 1)


class Plan:
    """A value that never changes, and so cannot be filled by a copy."""

    def __init__(self, scale: float) -> None:
        object.__setattr__(self, "scale", scale)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Plan is immutable: {name}")

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class WithAPlan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plan = nn.Linear(WIDTH, WIDTH), Plan(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.plan.scale


class OtherIfCompiled(WithAPlan):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)


@pytest.fixture(autouse=True)
def as_torch_has_them() -> Iterator[None]:
    """Scripted modules refuse hooks again after each test."""
    kept = {name: each for name, each in vars(torch.jit.RecursiveScriptModule).items() if "hook" in name}
    yield
    for name, each in kept.items():
        setattr(torch.jit.RecursiveScriptModule, name, each)


def examined(code: str, make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load(code), small_subject(make, width=WIDTH, max_length=64, spec=("causal",)))


@pytest.mark.parametrize("make", [WithAPart, Recurrent, ScriptedLoop])
@pytest.mark.parametrize("code", ["FWD210", "FWD213", "FWD220", "FWD250", "GRD107", "GRD108", "GRD110", "HNG201"])
def test_what_is_scripted_is_examined_as_any_other(code: str, make: Callable[[], nn.Module]) -> None:
    result = examined(code, make)
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), result.reason
    assert not (result.verdict is Verdict.SKIP and result.is_required), result.reason


def test_what_reads_each_token_on_the_host_is_found_still() -> None:
    (finding,) = examined("HNG201", ReadsEach).findings
    assert "1 times per token (tolist)" in finding.message


def test_what_torch_compile_made_is_looked_at_uncompiled() -> None:
    result = examined("GRD238", lambda: torch.compile(Gated(), backend="eager"))
    assert result.verdict is Verdict.PASS, result.reason


def test_hooks_of_a_scripted_part_are_called() -> None:
    let_scripted_take_hooks()
    part, seen = torch.jit.script(Gated()), []
    part.register_forward_hook(lambda module, args, answer: seen.append(answer.shape))
    part(torch.randn(2, WIDTH))
    assert seen == [(2, WIDTH)]


def test_what_cannot_be_copied_is_compiled_all_the_same() -> None:
    result = examined("FWD228", OtherIfCompiled)
    assert (result.verdict, len(result.findings)) == (Verdict.FAIL, 1), result.reason
