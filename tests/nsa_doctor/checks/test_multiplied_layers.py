"""A layer that a line puts into a list several times is found at that line, unless the source means it to be shared."""

from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.checks.fwd.fwd237_layers_are_one import CHECK
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import multiplied_layers as faulty
from tests.nsa_doctor.checks import odd_layers as healthy
from tests.nsa_doctor.checks.multiplied_layers import DIM


def examined(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    def forward(module: Any, x: Tensor) -> Tensor:
        output: Tensor = module(x)
        return output

    subject = Subject(
        name="tests",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        max_length=64,
        packages=("tests",),
    )
    return run_check(CHECK, subject)


def line_of(name: str) -> int:
    """Where the file of faulty layers says `# here: name`."""
    with open(faulty.__file__, encoding="utf-8") as file:
        (number,) = (number for number, text in enumerate(file, 1) if text.rstrip().endswith(f"# here: {name}"))
    return number


@pytest.mark.parametrize("name", sorted(faulty.EVERY))
def test_a_layer_that_a_line_multiplies_is_found_there(name: str) -> None:
    (finding,) = examined(faulty.EVERY[name]).findings
    assert finding.message.endswith(": one and the same module")
    assert (finding.where.file, finding.where.line) == (faulty.__file__, line_of(name))


def test_a_tensor_that_stands_several_times_is_one() -> None:
    (finding,) = examined(faulty.Prompts).findings
    assert finding.message == "Parameter stands 3 times in prompts: one and the same tensor"
    assert finding.where.line == line_of("prompts")


@pytest.mark.parametrize("make", healthy.EVERY)
def test_layers_that_are_their_own_or_meant_to_be_shared_are_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.findings, result.notes) == ((), ())


def test_a_list_that_is_handed_in_is_a_note() -> None:
    layer = nn.Linear(DIM, DIM)
    for layers in ([layer, layer], nn.ModuleList([layer, layer]), repeat(layer, 2)):
        made = partial(healthy.Given, list(layers))
        result = examined(made)
        assert (result.findings, len(result.notes)) == ((), 1)


def test_a_subject_whose_second_build_raises_is_found_by_its_attribute() -> None:
    builds = []

    def once() -> nn.Module:
        builds.append(1)
        if len(builds) > 1:
            raise RuntimeError("once alone")
        return faulty.OverLines()

    (finding,) = examined(once).findings
    assert finding.where.line == line_of("over lines") - 1
