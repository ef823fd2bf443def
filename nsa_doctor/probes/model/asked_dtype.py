"""Whether a module computes something else for another dtype, by its source."""

import ast
import inspect
import textwrap

from torch import nn

from nsa_doctor.core.errors import Caught, attempt


def asks_for_dtype(module: nn.Module) -> bool:
    """Whether its forward compares the dtype of something: an epsilon for float32 may be another for float64."""
    tree = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(type(module).forward))))
    if isinstance(tree, Caught):
        return False
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    sides = (side for node in compared for side in (node.left, *node.comparators))
    return any(isinstance(side, ast.Attribute) and side.attr == "dtype" for side in sides)
