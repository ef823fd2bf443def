"""A switch of the environment that is on by default and that no text turns off is found at the line that asks."""

import linecache
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.probes.behaviour.stuck_switches import stuck_switches
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

NAME = "TESTS_OF_SWITCHES"


def never_off(name: str) -> bool:
    value = os.environ.get(name, "")
    return True if not value else bool(value)


def by_words(name: str) -> bool:
    value = os.getenv(name)
    return bool(value is None or value.lower() not in ("0", "off", "false", "no"))


def off_by_default(name: str) -> bool:
    return bool(os.environ.get(name))


def by_number(name: str) -> bool:
    return bool(int(os.environ.get(name, "1")))


class Switched(nn.Module):
    def __init__(self, switch: Callable[[str], bool]) -> None:
        super().__init__()
        self.mix, self.switch = nn.Linear(8, 8), switch

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) if self.switch(NAME) else x @ self.mix.weight.mT + self.mix.bias


@pytest.mark.parametrize(
    ("switch", "names"),
    [(never_off, [NAME]), (by_words, []), (off_by_default, []), (by_number, [])],
)
def test_a_switch_that_no_text_turns_off_is_seen(switch: Callable[[str], bool], names: list[str]) -> None:
    subject = Subject(
        name="switched",
        build=lambda _seed: Switched(switch),
        forward=lambda module, x: module(x),
        input="embeddings",
        width=8,
        packages=("tests",),
    )
    torch.manual_seed(0)
    found = dict(stuck_switches(built(subject)))
    assert list(found) == names
    assert all("bool(value)" in linecache.getline(each.file, each.line) for each in found.values())
    assert NAME not in os.environ
