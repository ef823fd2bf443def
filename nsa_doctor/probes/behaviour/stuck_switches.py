"""Switches of the environment that are on unless set, and that no text turns off: `bool("0")` is true."""

import ast
import linecache
from collections.abc import Iterator

import torch

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.environment_reads import answers_to, environment_reads, environment_with
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule

OFF = ("0", "off", "false", "no")
_LENGTH = 17
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def stuck_switches(sp: BuiltModule) -> Iterator[tuple[str, Place]]:
    """Variables for which the function that reads them answers True unset and for every word for off.

    Of functions alone that take the truth of a text by `bool(...)`, each with that line.
    """
    with environment_reads(FrameFilter(sp.subject.packages)) as read:
        _called(sp)
    for name, place in read.items():
        line = _line_of_truth(place)
        if line is not None and all(_is_on(sp, name, text) for text in (None, *OFF)):
            yield name, Place(file=place.file, line=line, function=place.function)


def _is_on(sp: BuiltModule, name: str, text: str | None) -> bool:
    with environment_with(name, text), answers_to(name) as answers:
        called = attempt(lambda: _called(sp))
    return not isinstance(called, Caught) and bool(answers) and all(answer is True for answer in answers)


def _called(sp: BuiltModule) -> None:
    with unobserved(), torch.no_grad():
        sp(sp.input(min(_LENGTH, sp.subject.max_length)))


def _line_of_truth(place: Place) -> int | None:
    """The line of the function that reads there on which `bool` is called; None where it is not."""
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(place.file))))
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
        if isinstance(node, _FUNCTIONS) and node.lineno <= place.line <= (node.end_lineno or 0):
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
            return next((each.lineno for each in calls if getattr(each.func, "id", "") == "bool"), None)
    return None
