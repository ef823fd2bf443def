"""Mutators: each changes what it says and nothing else, in code that computes alone."""

import ast

import pytest

from nsa_doctor.policy.proving.computing import computing
from nsa_doctor.policy.proving.mutants import drawn, edits
from nsa_doctor.policy.proving.source import Source, read_source

EVERY_LINE = range(1, 1000)


def mutants(line: str, kind: str) -> set[str]:
    """What becomes of the line of a small function by the operators of a kind."""
    source = Source(f"import torch\nimport torch.nn.functional as F\ndef f(self, x, y):\n    {line}\n")
    found = [edit for edit in edits(source, EVERY_LINE) if edit.kind == kind]
    return {source.lines_of(edit)[1] for edit in found if source.edited(edit) is not None}


@pytest.mark.parametrize(
    ("line", "kind", "expected"),
    [
        ("return x + y", "arithmetic", {"return x - y"}),
        ("return (x)  *(y)", "arithmetic", {"return (x)  /(y)"}),
        ("return x // y", "arithmetic", {"return x % y"}),
        ("return x ** y", "arithmetic", {"return x * y"}),
        ("x += y", "arithmetic", {"x -= y"}),
        ("return '%d' % x", "arithmetic", set()),
        ("return x < y <= 2", "comparison", {"return x <= y <= 2", "return x < y < 2"}),
        ("return x == y", "comparison", {"return x != y"}),
        ("return x if y else 0", "condition", {"return x if (not (y)) else 0"}),
        ("return x and y", "condition", {"return x or y"}),
        ("return -x", "sign", {"return x"}),
        ("return ~x", "sign", {"return x"}),
        ("return x(y, keepdim=True)", "flag", {"return x(y, keepdim=False)"}),
        ("return x + 3", "number", {"return x + 4", "return x + 2", "return x + -3"}),
        ("return x + 1e-6", "number", {"return x + 0.0", "return x + 1.0", "return x + -1e-06"}),
        ("return x ** -0.5", "scale", {"return x ** -1.0", "return x ** 0.5"}),
        ("return x / 8", "scale", {f"return x / {other}" for other in (9, 7, -8, 64, 1)}),
        ("return x[:, 1]", "index", {"return x[:, 2]", "return x[:, 0]"}),
        ("return x[y:]", "index", {"return x[:]", "return x[(y) + 1:]", "return x[(y) - 1:]"}),
        ("return x[:-1]", "index", {"return x[:]", "return x[:0]", "return x[:-2]"}),
        ("return x.softmax(-1)", "dimension", {"return x.softmax(0)", "return x.softmax(-2)"}),
        ("return x.sum(dim=(1,))", "dimension", {"return x.sum(dim=(2,))", "return x.sum(dim=(0,))"}),
        ("return torch.cat((x, y), 1)", "dimension", {"return torch.cat((x, y), 2)", "return torch.cat((x, y), 0)"}),
        ("return x.triu(1)", "mask", {"return x.triu(2)", "return x.triu(0)"}),
        ("return x.tril()", "mask", {"return x.tril(1)", "return x.tril(-1)"}),
        ("return torch.tril(x)", "mask", {"return torch.tril(x, 1)", "return torch.tril(x, -1)"}),
        ("return x.tril()", "function", {"return x.triu()"}),
        ("return max(x, y)", "function", {"return min(x, y)"}),
        ("return x.contiguous()", "call", {"return (x)"}),
        ("return x.masked_fill(y, 0.0).detach()", "call", {"return (x).detach()", "return (x.masked_fill(y, 0.0))"}),
        ("return F.silu(x)", "call", {"return (x)"}),
        ("return self.norm(x)", "call", {"return (x)"}),
        ("return torch.cat((x, y))", "call", set()),
        ("return f(x, y)", "arguments", {"return f(y, x)"}),
        ("x, y = f(0)", "arguments", {"y, x = f(0)"}),
        ("return f(x, 1)", "arguments", set()),
    ],
)
def test_an_operator_makes_these_changes(line, kind, expected):
    assert mutants(line, kind) == expected


def test_a_comment_between_operands_hides_no_operator():
    source = Source("def f(x):\n    return (x  # less - than\n        - 1)\n")
    edit = next(edit for edit in edits(source, EVERY_LINE) if edit.kind == "arithmetic")
    assert source.edited(edit) == "def f(x):\n    return (x  # less - than\n        + 1)\n"


def test_everything_else_stays_byte_for_byte():
    text = '"""É."""\r\nimport torch  # ünïcode\r\n\r\ndef f( x ):\r\n\treturn "é" , x  +  1 # tail\r\n'
    source = Source(text)
    for edit in edits(source, EVERY_LINE):
        made = source.edited(edit)
        assert made is not None
        data = made.encode()
        assert data[: edit.start] == source.data[: edit.start]
        assert data[edit.start + len(edit.new.encode()) :] == source.data[edit.end :]


def test_a_file_in_an_encoding_of_its_own_is_read(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes("# coding: latin-1\nNAME = 'é'\nONE = 1\n".encode("latin-1"))
    source = read_source(str(path))
    assert source is not None
    assert source.segment(source.tree.body[0].value) == "'é'"


def test_what_is_no_python_is_no_source(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert read_source(str(tmp_path / "broken.py")) is None
    assert read_source(str(tmp_path / "missing.py")) is None


TEXT = '''"""Docstring with 1 + 1."""
ONE = 1 + 1


class A:
    size: int

    def __init__(self, dim=64): self.scale = dim

    def f(self, x: list[1] = 3) -> 2:
        """About x + 1."""
        if x < 0:
            raise ValueError(f"x must be at least {0 + 0}, got {x}")
        assert x + 1
        print(x + 1)
        if x > 7:
            return x + 5
        return f"{x + 1}"

    def extra_repr(self) -> str:
        return str(1 + 1)
'''


def changed_lines(reached) -> set[int]:
    source = Source(TEXT)
    return {source.line_of(edit) for edit in edits(source, reached)}


def test_what_raises_tells_annotates_or_configures_is_not_mutated():
    assert changed_lines(EVERY_LINE) == {2, 10, 16, 17}


def test_lines_that_were_not_reached_are_not_mutated():
    assert changed_lines({16, 18}) == {10, 16}


def test_a_node_is_visited_once():
    found = computing(Source(TEXT).tree, EVERY_LINE)
    nodes = [node for node in found if isinstance(node, ast.expr | ast.stmt)]  # contexts are shared
    assert len({id(node) for node in nodes}) == len(nodes)


def order(seed: int) -> list[str]:
    text = "def f(x, y):\n    return (x + y) * 3 if x < y else x[1:].tril()\n"
    return [mutant.after for mutant in drawn({"f.py": Source(text)}, {"f.py": EVERY_LINE}, seed)]


def test_a_seed_draws_the_same_mutants_and_another_one_another_order():
    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))


def test_kinds_take_turns():
    text = "def f(x):\n    a = (1, 2, 3, 4, 5, 6, 7, 8, 9)\n    return x < 3\n"
    kinds = [mutant.kind for mutant in drawn({"f.py": Source(text)}, {"f.py": EVERY_LINE}, 0)]
    assert set(kinds[:2]) == {"number", "comparison"}
