"""Small functions of masks, lengths and logits, asked for what their names say (FWD267)."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from nsa_doctor.probes.model.own_functions import OwnFunction
from nsa_doctor.probes.numerics.known_helpers import HELPERS
from nsa_doctor.probes.numerics.misnamed_helpers import departure
from tests.nsa_doctor.checks import faulty_helpers, helpers_of_masks


def functions_of(module: ModuleType) -> list[Any]:
    return [
        pytest.param(each, id=name)
        for name, each in vars(module).items()
        if getattr(each, "__module__", "") == module.__name__
    ]


def said_of(function: Callable[..., Any]) -> str:
    helper = next((each for each in HELPERS if each.name.search(function.__name__)), None)
    own = OwnFunction(function.__name__, function, place=None)  # type: ignore[arg-type]
    return departure(own, helper) if helper else ""


@pytest.mark.parametrize("function", functions_of(faulty_helpers))
def test_what_its_name_does_not_say_is_found(function: Callable[..., Any]) -> None:
    assert " where " in said_of(function)


@pytest.mark.parametrize("function", functions_of(helpers_of_masks))
def test_what_its_name_says_in_any_convention_is_silent(function: Callable[..., Any]) -> None:
    assert said_of(function) == ""


def test_every_kind_has_a_faulty_one_and_a_right_one() -> None:
    for module in (faulty_helpers, helpers_of_masks):
        names = [name for name, each in vars(module).items() if inspect.isfunction(each)]
        assert all(any(helper.name.search(name) for name in names) for helper in HELPERS)
