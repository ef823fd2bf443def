"""What CONTRIBUTING.md asks of every file of ours that a machine can see, and the files that break it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.syntax_trees import walk

FOLDERS = ("examples", "nsa", "nsa_doctor", "regressions", "tests")
DOCUMENTS = {"CHANGELOG.md", "CONTRIBUTING.md", "README.md"}
# Code as others write it, which is what is examined there, and lists of what is changed in it.
FOREIGN = (
    *(Path("tests/gallery_code", each) for each in ("hosts", "bugs", "healthy")),
    *(Path("tests/gallery_functions", each) for each in ("hosts", "alone", "odd", "wrong", "healthy")),
)
CATCHES_EVERYTHING = {Path("nsa_doctor/core/errors.py"), Path("tests/gallery/faulty/swallowing.py")}
_LOOKED_AT = (
    *(ast.Name, ast.Attribute, ast.ImportFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler),
)
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "misc"}


def broken_shapes(root: Path) -> list[str]:
    """One line for each breach under `root`: place, what is seen, what is allowed."""
    return sorted(
        f"{path.relative_to(root)}:{line}: {breach}"
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
        if not any(path.is_relative_to(root / each) for each in FOREIGN)
        for line, breach in breaches(path.relative_to(root), path.read_text(encoding="utf-8"))
    )


def breaches(path: Path, text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    num_lines, cap = len(text.splitlines()) - lines_of_manual(path, tree), max_lines(path)
    if num_lines > cap:
        yield 1, f"{num_lines} lines, at most {cap}"
    if path.stem in MEANINGLESS:
        yield 1, "a file is named for its content"
    for number, line in enumerate(text.splitlines(), start=1):
        if ".md" not in line:
            continue
        for document in set(re.findall(r"\b[A-Z][A-Z_]*\.md\b", line)) - DOCUMENTS:
            yield number, f"cites {document}, which is not in the repository"
    for node in walk(tree):
        if isinstance(node, _LOOKED_AT):
            for breach in node_breaches(path, node):
                yield getattr(node, "lineno", 1), breach


def max_lines(path: Path) -> int:
    if path.stem == "triton":
        return 600
    return 100 if is_check(path) else 400


def is_check(path: Path) -> bool:
    return path.match("nsa_doctor/checks/[a-z]*/*.py")


def lines_of_manual(path: Path, tree: ast.Module) -> int:
    """The lines of a check's docstring, which is documentation and may be as long as its example takes."""
    first = tree.body[:1]
    is_manual = is_check(path) and first and isinstance(first[0], ast.Expr)
    return (first[0].end_lineno or 0) if is_manual else 0


def node_breaches(path: Path, node: ast.AST) -> Iterator[str]:
    package = path.parts[0]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        length, cap = (node.end_lineno or 0) - node.lineno + 1, 120 if path.stem == "triton" else 60
        if length > cap:
            yield f"{node.name} has {length} lines, at most {cap}"
    if isinstance(node, ast.ExceptHandler) and path not in CATCHES_EVERYTHING and swallows(node):
        yield "swallows every exception; nsa_doctor/core/errors.py alone may"
    named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if package == "nsa" and "nan_to_num" in named:
        yield "nan_to_num; make no NaN instead"
    if package == "nsa" and isinstance(node, ast.ImportFrom) and node.module == "__future__":
        yield "imports from __future__, which blinds the shape checks"


def swallows(node: ast.ExceptHandler) -> bool:
    """Whether every exception is caught and none raised again."""
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    catches_all = any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in caught)
    return catches_all and ast.unparse(node.body[-1]) != "raise"
