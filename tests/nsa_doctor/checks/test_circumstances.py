"""What must not matter to a call does not, or is found with its line."""

import gc
import inspect
import os
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed import all_reduce, is_initialized

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DETERMINISTIC = torch.are_deterministic_algorithms_enabled()
DEPTH = len(inspect.stack(0))
CIRCUMSTANCES = {  # a condition, and the words of the finding
    "anomaly": (lambda module, x: torch.is_anomaly_enabled(), "anomaly mode"),
    "deterministic": (
        lambda module, x: torch.are_deterministic_algorithms_enabled() is not DETERMINISTIC,
        "deterministic mode",
    ),
    "frozen": (lambda module, x: not module.weight.requires_grad, "a frozen model"),
    "held gradients": (lambda module, x: module.weight.grad is not None, "holds gradients"),
    "input": (lambda module, x: x.requires_grad, "an input that requires a gradient"),
    "thread": (lambda module, x: threading.current_thread() is not threading.main_thread(), "a thread of Python's"),
    "inference": (lambda module, x: torch.is_inference_mode_enabled(), "inference_mode"),
    "compiled": (lambda module, x: torch.compiler.is_compiling(), "is being compiled"),
    "scripted": (lambda module, x: torch.jit.is_scripting(), "is being traced"),
    "cores": (lambda module, x: os.cpu_count() == 64, "64 cores"),
    "group": (lambda module, x: is_initialized() and torch.distributed.get_world_size() == 1, "a process group"),
    "collector": (lambda module, x: not gc.isenabled(), "garbage collector"),
    "stack": (lambda module, x: len(inspect.stack(0)) > DEPTH + 90, "calls deeper"),
    "default dtype": (lambda module, x: torch.get_default_dtype() == torch.float64, "torch's default dtype"),
}


class Sometimes(nn.Linear):
    """A linear layer that does something else under a condition."""

    def __init__(self, condition, effect):
        super().__init__(8, 8)
        self.condition, self.effect = condition, effect

    def forward(self, x):
        y = super().forward(x)
        return self.effect(y) if self.condition(self, x) else y


class Model(nn.Sequential):
    pass


def examined(make, code: str = "FWD212", **changes) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8, max_length=128)
    return run_check(registry.load(code), replace(subject, packages=("tests",), **changes))


def refuses(y):
    raise ValueError("not under this")


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_an_output_that_a_circumstance_changes_is_found(name: str) -> None:
    condition, words = CIRCUMSTANCES[name]
    result = examined(lambda: Model(Sometimes(condition, lambda y: y * 1.01)))
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert words in finding.message
    assert finding.where.module == "0"


@pytest.mark.parametrize("name", ["frozen", "inference"])
def test_a_raise_under_a_circumstance_is_found(name: str) -> None:
    condition, words = CIRCUMSTANCES[name]
    result = examined(lambda: Model(Sometimes(condition, refuses)))
    assert result.verdict is Verdict.FAIL
    assert words in result.findings[0].message
    assert "ValueError: not under this" in result.findings[0].message
    assert result.findings[0].where.function == "refuses"


def test_another_shape_under_a_circumstance_is_found() -> None:
    condition, words = CIRCUMSTANCES["inference"]
    (finding,) = examined(lambda: Model(Sometimes(condition, lambda y: y[:, 1:]))).findings
    assert words in finding.message
    assert "an output of another shape" in finding.message


def test_rows_that_two_layers_exchange_in_a_thread_are_found_in_a_line() -> None:
    condition, words = CIRCUMSTANCES["thread"]
    result = examined(lambda: Model(*(Sometimes(condition, lambda y: y.roll(1, 0)) for _ in range(2))))
    assert words in result.findings[0].message
    assert result.findings[0].where.module == "0"
    assert result.findings[0].where.file == __file__


class KeepsTable(nn.Linear):
    table = None

    def forward(self, x):
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype).cos()[:, None]
        return super().forward(x) * self.table[: x.shape[1]]


class DifferentiatesInside(nn.Linear):
    """Its output is a gradient: torch allows that under no_grad, and not in inference mode."""

    def forward(self, x):
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            (inner,) = torch.autograd.grad(super().forward(given).sin().sum(), given)
        return super().forward(x) + inner


class CountsInFloat32(nn.Linear):
    """Positions of the default dtype: coarser in float32 than in float64, and neither is wrong."""

    def forward(self, x):
        angles = torch.arange(x.shape[1]) / 7.0
        return super().forward(x) * angles.cos()[:, None].to(x.dtype)


class ScattersIntoDefault(nn.Linear):
    """Two dtypes meet where the default one is not float32: torch refuses, and it is no fault of the subject."""

    def forward(self, x):
        gathered = torch.zeros(x.shape[1]).index_put((torch.tensor([0]),), x[0, :1, 0].float())
        return super().forward(x) + gathered[:, None].to(x.dtype)


class AddsUpOverProcesses(nn.Linear):
    """Which of one process is what it is; and compiled it may do what only a compiler serves."""

    def forward(self, x):
        y = super().forward(x)
        if torch.compiler.is_compiling():
            raise RuntimeError("only in a graph")
        if is_initialized():
            all_reduce(y)
            y = y / torch.distributed.get_world_size()
        return y


class TableOfDefaultDtype(nn.Linear):
    """Rounded to float32 on its way under either default: a table that is another one is not hidden by that."""

    def __init__(self, wrong=1.0):
        super().__init__(8, 8)
        self.wrong = wrong

    def forward(self, x):
        angles = torch.arange(float(x.shape[1]))
        is_wide = angles.dtype == torch.float64
        return super().forward(x) * (angles * (self.wrong if is_wide else 1)).cos().float().to(x.dtype)[:, None]


class SumsInFloat32(nn.Linear):
    def forward(self, x):
        return super().forward(x.float().to(x.dtype)).cumsum(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeepsTable(8, 8),
        lambda: SumsInFloat32(8, 8),
        lambda: CountsInFloat32(8, 8),
        lambda: AddsUpOverProcesses(8, 8),
        TableOfDefaultDtype,
        lambda: ScattersIntoDefault(8, 8),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)),
        lambda: nn.Linear(8, 8).requires_grad_(False),
        lambda: nn.Linear(8, 8).bfloat16(),
    ],
    ids=[
        "table",
        "float32 inside",
        "coarse positions",
        "processes",
        "tables",
        "two dtypes",
        "dropout",
        "frozen",
        "bfloat16",
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_model_is_silent(make, seed: int) -> None:
    dtype = str(next(make().parameters()).dtype)[6:]
    result = examined(make, seed=seed, dtype=dtype)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_table_that_the_default_dtype_changes_is_found() -> None:
    (finding,) = examined(lambda: TableOfDefaultDtype(wrong=1.01)).findings
    assert "float64 as torch's default dtype" in finding.message


def test_an_input_at_an_offset_of_its_storage_is_tried() -> None:
    condition = lambda module, x: x.storage_offset() > 0 and x.is_contiguous()  # noqa: E731
    (finding,) = examined(lambda: Model(Sometimes(condition, lambda y: y * 1.01)), code="FWD205").findings
    assert "offset input gives another output" in finding.message


def test_what_torch_does_not_serve_in_inference_mode_is_no_finding() -> None:
    result = examined(lambda: DifferentiatesInside(8, 8))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_modes_are_as_they_were_afterwards() -> None:
    before = (torch.get_num_threads(), torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled())
    examined(lambda: nn.Linear(8, 8))
    assert before == (
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
