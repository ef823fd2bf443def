"""A loop over named parameters whose names nothing has is found at its condition; options and others are silent."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Mixed(nn.Module):
    """Two maps; `named` says what is done to its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.output_map = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.output_map(self.up(x))


class OfAnother(Mixed):
    def start(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("qmapin.weight") or name.endswith("qmapout.weight"):
                nn.init.normal_(parameter, std=0.01)


class AmongOthers(Mixed):
    def start(self) -> None:
        for name, parameter in self.named_parameters():
            if "up" in name:
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1 and name.startswith(("qmapless.", "qmapmore.")):
                nn.init.normal_(parameter, std=0.01)


class OfItsOwn(Mixed):
    def start(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("output_map.weight") or name.endswith("broadening.weight"):
                nn.init.normal_(parameter, std=0.01)


class OfAnOption(Mixed):
    """Its source has a part of that name, which an option adds."""

    def start(self) -> None:
        for name, parameter in self.named_parameters():
            if "optional_gate" in name:
                nn.init.zeros_(parameter)

    def add(self) -> None:
        self.optional_gate = nn.Linear(DIM, DIM)


class Without(Mixed):
    def start(self) -> None:
        for name, parameter in self.named_parameters():
            if not name.startswith("absent") and "missing" not in name:
                nn.init.normal_(parameter, std=0.02)
            if "bias" in name:
                nn.init.zeros_(parameter)
            if "in_proj" in name:
                nn.init.zeros_(parameter)


class Counted(Mixed):
    """Writes nothing."""

    def start(self) -> None:
        self.total = 0
        for name, parameter in self.named_parameters():
            if name == "unheard.of":
                self.total += parameter.numel()


class ByAVariable(Mixed):
    def start(self) -> None:
        wanted = "elsewhere"
        for name, parameter in self.named_parameters():
            if name.endswith(wanted):
                nn.init.zeros_(parameter)


class OfAnotherQuestion(Mixed):
    """Either of two conditions, of which one is none of the name, or of a name that varies."""

    def start(self) -> None:
        wanted = "up"
        for name, parameter in self.named_parameters():
            if name.endswith("qmaplost.weight") or parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.01)
            if "qmapgone" in name or name.startswith(wanted):
                nn.init.zeros_(parameter)


def examined(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="named",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        packages=("tests",),
        profile="smoke",
    )
    return run_check(registry.load("GRD218"), subject)


PART = "qmap"  # a word that stands whole elsewhere in the file is one that some part of the package may have for a name
SAID = {
    OfAnother: (f"'{PART}in.weight' or '{PART}out.weight'", "if name.endswith("),
    AmongOthers: (f"'{PART}less.' or '{PART}more.'", "elif parameter.dim() > 1 and name.startswith("),
}


@pytest.mark.parametrize("make", SAID)
def test_a_name_that_no_parameter_has_is_found_at_its_condition(make: type[nn.Module]) -> None:
    said, line = SAID[make]
    (finding,) = examined(lambda: nn.Sequential(make(), make())).findings
    assert finding.message.startswith(f"no parameter has {said} in its name")
    assert Path(finding.where.file).read_text().splitlines()[finding.where.line - 1].strip().startswith(line)


@pytest.mark.parametrize("make", [OfItsOwn, OfAnOption, Without, Counted, ByAVariable, OfAnotherQuestion])
def test_other_loops_are_silent(make: type[nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS
