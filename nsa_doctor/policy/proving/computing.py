"""Which expressions of a file compute: those on lines that were reached, and that no message or annotation holds."""

import ast
from collections.abc import Collection, Iterator

_NOT_COMPUTING = ("extra_repr", "__repr__", "__str__")
_CONFIGURING = ("__init__", "__post_init__")  # with other defaults it is another model, and no faulty one
_TELLING = ("print", "warn", "debug", "info", "warning", "error", "exception", "log")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def computing(tree: ast.Module, reached: Collection[int]) -> Iterator[ast.AST]:
    """Every node that a change of may change what is computed, in the order of the file."""
    for part in _parts(tree.body, frozenset(reached)):
        yield from _nodes(part)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those in it; what an f-string holds has no places of its own before Python 3.12."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt):
                yield from _nodes(child)


def _parts(body: list[ast.stmt], reached: frozenset[int]) -> Iterator[ast.AST]:
    """Statements and expressions that compute, without the blocks in them."""
    for statement in body:
        if isinstance(statement, _Function):
            yield from _of_function(statement, reached)
        elif isinstance(statement, ast.ClassDef):
            yield from _parts(statement.body, reached)
        elif not _only_tells(statement):
            yield from _of_statement(statement, reached)


def _of_function(function: _Function, reached: frozenset[int]) -> Iterator[ast.AST]:
    """The defaults of a function that was called, and what it does."""
    assert function.end_lineno is not None
    if function.name in _NOT_COMPUTING:
        return
    if function.name not in _CONFIGURING and reached & set(range(function.body[0].lineno, function.end_lineno + 1)):
        yield from (default for default in (*function.args.defaults, *function.args.kw_defaults) if default is not None)
    yield from _parts(function.body, reached)


def _of_statement(statement: ast.stmt, reached: frozenset[int]) -> Iterator[ast.AST]:
    blocks = [block for block in _blocks(statement) if block]
    assert statement.end_lineno is not None
    last = blocks[0][0].lineno - 1 if blocks else statement.end_lineno
    is_reached = bool(reached & set(range(statement.lineno, max(last, statement.lineno) + 1)))
    is_guard = isinstance(statement, ast.If) and all(isinstance(inner, ast.Raise) for inner in statement.body)
    if is_reached and not is_guard:
        yield statement
    for block in blocks:
        yield from _parts(block, reached)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of statements in a statement, the first one first."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", getattr(statement, "cases", [])):
        yield handler.body


def _only_tells(statement: ast.stmt) -> bool:
    """Whether it raises, prints, documents or declares, and computes nothing."""
    if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return True
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    if not isinstance(statement, ast.Expr):
        return False
    call = statement.value
    name = getattr(getattr(call, "func", None), "attr", getattr(getattr(call, "func", None), "id", ""))
    return isinstance(call, ast.Constant) or name in _TELLING
