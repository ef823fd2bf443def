"""One source file as it stands: its tree, and the bytes each node of it covers."""

import ast
import io
import tokenize
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Bytes `start` to `end` of a file become `new`; `kind` is the operator that asks for it."""

    start: int
    end: int
    new: str
    kind: str


class Source:
    """The text of a file, edited by the positions of its syntax tree: whatever is not edited stays byte for byte."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode()
        self.tree = ast.parse(text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def modules(self) -> frozenset[str]:
        """Names that an import binds: what is called on them is a function, and its first argument what it is about."""
        imports = (node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom))
        return frozenset((alias.asname or alias.name.partition(".")[0]) for node in imports for alias in node.names)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) for line in self.data.splitlines(keepends=True))]

    def span(self, node: ast.expr | ast.Slice) -> tuple[int, int]:
        """The bytes of a node, parentheses around it apart."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: ast.expr) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr, word: str) -> tuple[int, int] | None:
        """The bytes of an operator that stands between two nodes; what comments say there is none."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = b"".join(_without_comment(line) for line in self.data[start:end].splitlines(keepends=True))
        at = gap.find(word.encode())
        return None if at < 0 else (start + at, start + at + len(word.encode()))

    def line_of(self, edit: Edit) -> int:
        """The line that an edit begins in."""
        return self.data.count(b"\n", 0, edit.start) + 1

    def edited(self, edit: Edit) -> str | None:
        """The whole text after an edit; None where that is no Python, or the same program."""
        text = (self.data[: edit.start] + edit.new.encode() + self.data[edit.end :]).decode()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        return None if ast.dump(tree) == ast.dump(self.tree) else text

    def lines_of(self, edit: Edit) -> tuple[str, str]:
        """The line or lines of an edit, before and after it."""
        begin = self.data.rfind(b"\n", 0, edit.start) + 1
        end = self.data.find(b"\n", edit.end)
        end = len(self.data) if end < 0 else end
        before = self.data[begin:end].decode()
        after = (self.data[begin : edit.start] + edit.new.encode() + self.data[edit.end : end]).decode()
        return before.strip(), after.strip()


def read_source(path: str) -> Source | None:
    """A file of Python in its own encoding, line ends as they are; None for what cannot be read as such."""
    try:
        content = Path(path).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Source(content.decode(encoding))
    except (OSError, SyntaxError, ValueError):
        return None


def _without_comment(line: bytes) -> bytes:
    """A line of what stands between two operands, its comment blanked: there are no strings there."""
    code, sign, comment = line.partition(b"#")
    return code + b" " * len(sign + comment.rstrip(b"\n")) + (b"\n" if comment.endswith(b"\n") else b"")
