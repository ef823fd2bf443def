"""Functions that write into what they are given, through what looks like a copy and is none (FWD277)."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from nsa_doctor.probes.model.own_files import definitions_of
from nsa_doctor.probes.numerics.copies_that_are_none import FalseCopy, false_copies_in
from tests.nsa_doctor.checks import faulty_copies, right_copies


def pieces(module: ModuleType) -> list[str]:
    """The names of its functions and classes."""
    tree = ast.parse(inspect.getsource(module))
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def found_in(module: ModuleType) -> list[FalseCopy]:
    file = str(module.__file__)
    return list(false_copies_in(list(definitions_of(Path(file).read_text(encoding="utf-8"), file, vars(module)))))


def lines_of(module: ModuleType, name: str) -> range:
    lines, first = inspect.getsourcelines(getattr(module, name))
    return range(first, first + len(lines))


@pytest.mark.parametrize("name", pieces(faulty_copies))
def test_what_is_no_copy_is_found_at_its_line(name: str) -> None:
    lines = Path(str(faulty_copies.__file__)).read_text(encoding="utf-8").splitlines()
    within = lines_of(faulty_copies, name)
    found = [each.place.line for each in found_in(faulty_copies) if each.place.line in within]
    assert found == [at for at in within if lines[at - 1].endswith("# here")]


@pytest.mark.parametrize("name", pieces(right_copies))
def test_what_is_copied_or_meant_is_silent(name: str) -> None:
    within = lines_of(right_copies, name)
    assert [each.what for each in found_in(right_copies) if each.place.line in within] == []


def said_of(name: str) -> str:
    within = lines_of(faulty_copies, name)
    return next(each.what for each in found_in(faulty_copies) if each.place.line in within)


def test_what_a_call_changes_is_said() -> None:
    assert said_of("shifted").startswith("`out = ids` is another name for it, and line ")
    asked = "asked with [3, 5] of float32 and [3] of float32, 15 of 15 values of it change"
    assert said_of("shifted").endswith(f"which is its caller's ({asked})")


def test_a_caller_that_reads_it_again_is_named() -> None:
    assert "which step reads again at line" in said_of("Trainer")


def test_a_docstring_that_says_the_reverse_is_named() -> None:
    assert said_of("Sampler").endswith("which its docstring says is left alone")


def test_a_caller_that_hands_it_on_from_outside_is_named() -> None:
    assert "which comes from the caller of prepared" in said_of("_halved")
