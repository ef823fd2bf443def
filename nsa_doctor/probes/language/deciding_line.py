"""The line of a function at which it decides which tokens are kept."""

import ast
from collections.abc import Iterator

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.language.kept_tokens import OtherTokens
from nsa_doctor.probes.language.sampling_names import Kind

_CHOOSING = ("topk", "kthvalue", "sort", "argsort", "searchsorted")


def deciding_place(found: OtherTokens, root: nn.Module) -> Place:
    """A comparison with the number, what chooses or computes by it, or the function's first line."""
    one = found.function
    first = one.code.co_firstlineno
    tree = attempt(lambda: ast.parse(one.text).body[0])
    line = first
    if not isinstance(tree, Caught):
        line = first + next(_lines(tree, one.signature.numbers[found.kind].name, found.kind), 1) - 1
    return Place(
        module=one.path,
        module_class=one.holder or type(root).__name__,
        file=one.code.co_filename,
        line=line,
        function=one.code.co_name,
    )


def _lines(tree: ast.AST, number: str, what: Kind) -> Iterator[int]:
    """Lines that the number decides at, first those that say most."""
    tests = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, (ast.If, ast.Assert, ast.IfExp))
        for each in ast.walk(node.test)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in tests]
    known = _following(nodes, number)
    is_count = what in ("top_k", "share")
    first = (ast.Call, ast.Compare) if is_count else (ast.Compare, ast.Call)
    for kind in (*first, ast.Subscript, ast.BinOp):
        for node in nodes:
            if not isinstance(node, kind) or not known & _names(node):
                continue
            if isinstance(node, ast.Call) and last_name(node.func) not in _CHOOSING:
                continue
            yield node.lineno


def _following(nodes: list[ast.AST], number: str) -> set[str]:
    """The number's name, and names that are made from it by arithmetic alone."""
    known = {number}
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and known & _names(node.value)
            and not any(isinstance(each, ast.Compare) for each in ast.walk(node.value))
        ):
            known |= {name for target in node.targets for name in _names(target)}
    return known


def _names(node: ast.AST) -> set[str]:
    return {last_name(each) for each in ast.walk(node)} - {""}
