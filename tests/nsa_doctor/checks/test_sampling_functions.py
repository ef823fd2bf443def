"""Functions for sampling that keep other tokens than they say are found at their line, and sound ones never."""

import inspect

import pytest
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import faulty_samplers, sound_samplers, sound_samplers_alone
from tests.nsa_doctor.small_subjects import small_subject

UNEXAMINED = ("OfExperts", "Noisy", "Typical", "Activated")


def classes_of(module: object) -> list[type[nn.Module]]:
    """Those that it defines, but for what they have in common."""
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, nn.Module)]
    return [each for each in found if each is not sound_samplers.Base]


def examined(make: type[nn.Module], *packages: str) -> Result:
    """The check of one module."""
    return run_check(registry.load("DEC117"), small_subject(make, width=8, packages=packages))


@pytest.mark.parametrize("kind", classes_of(faulty_samplers), ids=lambda kind: kind.__name__)
def test_other_tokens_are_found_where_it_is_decided(kind: type[nn.Module]) -> None:
    lines, first = inspect.getsourcelines(kind)
    due = first + next(number for number, line in enumerate(lines) if "# here" in line)
    result = examined(kind)
    assert [(each.where.line, each.where.module_class) for each in result.findings] == [(due, kind.__name__)]


@pytest.mark.parametrize(
    "kind", [*classes_of(sound_samplers), *classes_of(sound_samplers_alone)], ids=lambda kind: kind.__name__
)
def test_what_keeps_as_it_says_is_left_alone(kind: type[nn.Module]) -> None:
    result = examined(kind)
    assert result.findings == ()
    assert result.verdict is (Verdict.SKIP if kind.__name__ in UNEXAMINED else Verdict.PASS)
