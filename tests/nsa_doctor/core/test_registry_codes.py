"""A check is one file: it declares what the framework does with it, and no module of the framework names it."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nsa_doctor
from nsa_doctor.core import registry
from nsa_doctor.core.check import Command
from nsa_doctor.core.facts import Fact, Violation
from nsa_doctor.core.torch_errors import TorchError
from tests.arrows import modules

ROOT = Path(nsa_doctor.__path__[0]).parent
FAMILIES = "|".join(sorted({code[:3] for code in registry.entries()}))
CODE = re.compile(rf"\b(?:{FAMILIES})\d")  # also the beginning of one
DECLARED = (
    *("profile", "needs", "blocked_by", "explained_by", "isolate", "examines"),
    *("answers", "explains", "fuzzed", "since"),
)


def named_codes(text: str) -> list[str]:
    """Every string that names a code or the beginning of one, docstrings and parts of f-strings included."""
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [string for string in strings if isinstance(string, str) and CODE.search(string)]


def framework() -> Iterator[tuple[str, Path]]:
    """(module, file) of everything in the doctor that is no check."""
    for module, path in modules(ROOT, "nsa_doctor"):
        if not module.startswith("nsa_doctor.checks."):
            yield module, path


def test_no_module_of_the_framework_names_a_check() -> None:
    found = {module: named_codes(path.read_text(encoding="utf-8")) for module, path in framework()}
    assert len(found) > 200
    assert {module: strings for module, strings in found.items() if strings} == {}


@pytest.mark.parametrize(
    "text",
    ['x = "FWD101"', 'x = f"see NAN104 of {y}"', '"""PRF401: a docstring."""', 'ORDER = ("TRN2", "CKP")', "x['GRD4']"],
)
def test_a_named_check_would_be_found(text: str) -> None:
    assert len(named_codes(text)) == 1


@pytest.mark.parametrize("text", ['x = "FWD"', '"""`--select FWD,NAN`."""', "FWD101 = 1", 'x = "1FWD 2"'])
def test_a_family_is_no_code(text: str) -> None:
    assert named_codes(text) == []


def test_the_order_of_importance(golden: Callable[[str, str], None]) -> None:
    entries = sorted(registry.entries().values(), key=registry.in_order_of_importance)
    golden("importance.txt", "".join(f"{entry.manual.code} {entry.manual.name}\n" for entry in entries))


def test_the_code_of_every_property_of_fuzzing(golden: Callable[[str, str], None]) -> None:
    lines = (f"{violation.value}: {registry.fuzzed(violation).manual.code}\n" for violation in Violation)
    golden("violations.txt", "".join(lines))


@pytest.mark.parametrize("fact", Fact)
def test_every_fact_is_answered(fact: Fact) -> None:
    assert fact in registry.answering(fact).answers


@pytest.mark.parametrize("command", Command)
def test_every_command_has_checks_of_modules(command: Command) -> None:
    assert {entry.examines for entry in registry.of_command(command)} == {"module"}


def test_every_located_error_of_torch_has_one_check() -> None:
    explained = [error for entry in registry.entries().values() for error in entry.explains]
    assert sorted(explained) == [TorchError.GRAPH_FREED, TorchError.SAVED_TENSOR_MODIFIED]


@pytest.mark.parametrize("code", registry.entries())
def test_what_is_read_from_the_source_is_what_python_makes_of_it(code: str) -> None:
    entry, check = registry.entries()[code], registry.load(code)
    assert {name: getattr(entry, name) for name in DECLARED} == {name: getattr(check, name) for name in DECLARED}
    assert check.priority in (None, entry.priority)


def written(folder: Path, code: str, declared: str) -> tuple[str, Path]:
    """The file of a check that declares this."""
    path = folder / f"{code.lower()}_ill.py"
    path.write_text(
        f'"""{code} ill\n\nDetects: a.\nMatters: b.\nFix: c.\n"""\nCHECK = Check(doc=__doc__, {declared})\n'
    )
    return f"others.{path.stem}", path


def test_one_file_is_all_a_check_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [*registry._files(), written(tmp_path, "XYZ101", 'priority=1, commands=("anomaly",)')]
    monkeypatch.setattr(registry, "_files", lambda: iter(files))
    assert registry.of_command(Command.ANOMALY)[0].manual.code == "XYZ101"
    assert registry.priorities(["XYZ101"]) == {"XYZ101": 1}


def test_a_check_that_declares_no_priority_has_that_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path, "FWD901", "run=None"), written(tmp_path, "XYZ101", "run=None")]
    monkeypatch.setattr(registry, "_files", lambda: iter(files))
    found = registry.priorities(["NAN101", "FWD901", "PRF101", "TRN401", "XYZ101"])
    assert found["NAN101"] < found["FWD901"] < found["PRF101"]
    assert found["XYZ101"] > found["TRN401"]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('answers=("raises",)', "xyz101_ill.py:7: answers cannot hold 'raises'; did you mean raised"),
        (
            'explains=("a cold",)',
            "xyz101_ill.py:7: explains cannot hold 'a cold'; allowed are saved tensor modified, graph",
        ),
        ('fuzzed=("hang",)', "xyz101_ill.py:7: fuzzed cannot hold 'hang'; did you mean hangs"),
        ('commands=("sweep",)', "xyz101_ill.py:7: commands cannot hold 'sweep'; allowed are anomaly, throughput"),
        ("priority=FIRST", "xyz101_ill.py:7: priority must be written out as a literal, got FIRST"),
    ],
    ids=["fact", "error", "property", "command", "name"],
)
def test_what_the_framework_does_not_know_is_refused(
    declared: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path, "XYZ101", declared)]
    monkeypatch.setattr(registry, "_files", lambda: iter(files))
    with pytest.raises(ValueError, match=re.escape(message)):
        registry.entries()


@pytest.mark.parametrize("declared", ['answers=("raised",)', 'fuzzed=("hangs",)'], ids=["fact", "property"])
def test_two_checks_cannot_answer_one_fact(declared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [written(tmp_path, code, declared) for code in ("XYZ101", "XYZ102")]
    monkeypatch.setattr(registry, "_files", lambda: iter(files))
    with pytest.raises(ValueError, match=r"xyz102_ill\.py: '.*' is answered by .*xyz101_ill\.py already"):
        registry.entries()
