"""What an expression adds whose name says that it is a weight."""

import ast
import re
from typing import TypeGuard

from nsa_doctor.core.errors import Caught, attempt

_WEIGHT = re.compile(r"(^|_)(weights?|coeffs?|coefs?|coefficients?)(_|$)|[a-z]_(lambda|lamb|lam)_?$", re.IGNORECASE)
_CONSTANT = re.compile(  # of a bound, a density, a level that a loss does not fall below
    r"(^|_)(log|ln|min|max|least|most|floor|flood|norm|normali[sz]\w+|offset|prior|base|total|sum|eps|bias)(_|$)",
    re.IGNORECASE,
)


def weight_added(source: str) -> str:
    """The name of a side of a sum that is named as a weight, as `loss + self.aux_weight` adds; empty if none is."""
    parsed = attempt(lambda: ast.parse(source.strip()))
    statement = parsed.body[0] if not isinstance(parsed, Caught) and parsed.body else None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        sides: list[ast.expr] = [statement.value]
    elif isinstance(statement, ast.Expr) and _is_sum(statement.value):
        sides = [statement.value.left, statement.value.right]
    else:
        return ""
    named = [(each, _last_name(each)) for each in sides]
    return next((ast.unparse(each) for each, name in named if _WEIGHT.search(name) and not _CONSTANT.search(name)), "")


def _is_sum(node: ast.expr) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
