"""What several readers of source ask of Python's syntax trees."""

import ast


def last_name(node: ast.AST) -> str:
    """The last name of a dotted one: Module of torch.nn.Module; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def annotated_name(node: ast.AST) -> str:
    """The last name of a dotted one, of one in quotes, and of what is subscripted."""
    if isinstance(node, ast.Subscript):
        return annotated_name(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return last_name(node)
