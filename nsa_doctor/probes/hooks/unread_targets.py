"""Names that a function takes of a value that it takes apart, and never reads."""

import ast
import linecache

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def unread_targets(place: Place) -> list[tuple[str, int]]:
    """(name, line) of such names in the function that holds this line, the nearest behind the line first.

    A name that begins with an underscore is meant to go unread.
    """
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(place.file))))
    if isinstance(tree, Caught):
        return []
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _FUNCTIONS) and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    if not around:
        return []
    function = max(around, key=lambda node: node.lineno)
    named = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {node.id for node in named if not isinstance(node.ctx, ast.Store)}
    taken = [
        (name.id, name.lineno)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, (ast.Tuple, ast.List))
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and not name.id.startswith("_") and name.id not in read
    ]
    return sorted(taken, key=lambda each: (each[1] < place.line, abs(each[1] - place.line)))
