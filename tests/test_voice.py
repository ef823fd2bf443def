"""Messages, help and manuals speak in the field's terms: words that only this project used stay out of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from nsa_doctor.cli.main import app
from nsa_doctor.core import registry
from tests.syntax_trees import walk

ROOT = Path(__file__).parents[1]
DOCTOR = ROOT / "nsa_doctor"
BANNED = re.compile(
    r"\b(told|owe[sd]?|anew|held to|as good as|likeliest|to be believed|itself broke|without chance|another past|"
    r"lose otherwise|come out otherwise|the runs part)\b"
)
WIDTH = 80


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings of several words that are no docstrings: what is printed."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in walk(tree) if isinstance(node, documented)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if is_text and id(node) not in docstrings:
            yield node


def test_no_message_holds_a_private_word() -> None:
    found = [
        f"{path.relative_to(DOCTOR)}:{node.lineno}: {word[0]!r} in {node.value!r}"
        for path in sorted(DOCTOR.rglob("*.py"))
        for node in strings(ast.parse(path.read_text(encoding="utf-8")))
        if (word := BANNED.search(str(node.value)))
    ]
    assert found == []


def public_docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the module's and of every public class's and function's; without `code` and a check's title."""
    for node in walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and not getattr(node, "name", "").startswith(
            "_"
        ):
            text = re.sub(r"`[^`]*`", "", ast.get_docstring(node) or "")
            yield getattr(node, "lineno", 1), re.sub(r"^[A-Z]{3}\d{3} [a-z0-9-]+", "", text)


@pytest.mark.parametrize("package", ["nsa", "nsa_doctor"])
def test_no_public_docstring_holds_a_private_word(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word[0]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in public_docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if (word := BANNED.search(text))
    ]
    assert found == []


PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(
        f"docs/{name}.md"
        for name in (
            "attention",
            "benchmarks",
            "ci",
            "conformance",
            "examine",
            "hugging_face",
            "proving",
            "training",
            "verdicts",
        )
    ),
)


@pytest.mark.parametrize("name", PAGES)
def test_no_page_holds_a_private_word(name: str) -> None:
    lines = enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1)
    assert [(number, word[0]) for number, line in lines if (word := BANNED.search(line))] == []


@pytest.mark.parametrize("code", registry.manuals())
def test_no_manual_holds_a_private_word(code: str) -> None:
    manual = registry.manual(code)
    assert BANNED.search(f"{manual.detects} {manual.matters} {manual.fix}") is None


def test_no_help_holds_a_private_word() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
        assert not [text for text in texts if BANNED.search(text)], name


@pytest.mark.parametrize(
    "text", ["the loss is told", "what a layer owes", "it begins anew", "the runs part in softmax"]
)
def test_a_private_word_would_be_found(text: str) -> None:
    assert BANNED.search(text)
    assert [node.value for node in strings(ast.parse(f"def f():\n    raise ValueError({text!r})"))] == [text]


PACKAGES = ("nsa", "nsa_doctor", "regressions", "tests")
PRIVATE = {"told", "sick", "specimen", "yardstick", "mattering"}
FOREIGN = ("gallery_code", "gallery_functions")  # code as others write it


def private_identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every identifier with a private word: names, attributes, arguments, imports, keywords."""
    line = 1
    for node in walk(ast.parse(source)):
        line = getattr(node, "lineno", line)
        for value in () if isinstance(node, ast.Constant) else vars(node).values():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and PRIVATE.intersection(re.split(r"[._]", name.lower())):
                    yield line, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_identifier_holds_a_private_word(package: str) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py"))}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, text in texts.items()
        if not set(FOREIGN).intersection(path.parts) and any(word in text.lower() for word in PRIVATE)
        for line, name in private_identifiers(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "is_sick = 1",
        "decoding_specimen(x)",
        "def _told(): pass",
        "class Told: pass",
        "f(told=1)",
        "x.has_told",
        "lambda told: 0",
        "from a import told_apart",
        "import a as MOST_TOLD",
        "f'{told}'",
        "global told",
    ],
)
def test_an_identifier_with_a_private_word_would_be_found(source: str) -> None:
    assert [name for _, name in private_identifiers(source)]


def test_text_and_longer_words_are_no_private_identifiers() -> None:
    assert list(private_identifiers("untoldness = 'told'  # told")) == []
