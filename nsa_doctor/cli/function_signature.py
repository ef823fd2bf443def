"""How an attention function is called and which keys it reads, as its signature and its first lines tell."""

import ast

from nsa_doctor.core.syntax import last_name

_QUERY, _KEY, _VALUE = ("q", "query", "queries"), ("k", "key", "keys"), ("v", "value", "values")
_BY_PARAMETER = {  # convention of calling: parameters that it alone has
    "hf": ("module", "attention_mask"),
    "flex": ("score_mod", "block_mask"),
    "flash": ("softmax_scale", "window_size", "causal", "alibi_slopes"),
}
_CAUSAL = ("causal", "is_causal")


def convention(function: ast.FunctionDef) -> str | None:
    """How an attention function is called, by the names of its parameters; None for any other function."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    start = names[:1] == ["module"]
    heads = [name.lower().removesuffix("_states") for name in names[start : start + 3]]
    if len(heads) < 3 or any(name not in known for name, known in zip(heads, (_QUERY, _KEY, _VALUE), strict=True)):
        return None
    every = {*names, *(each.arg for each in given.kwonlyargs)}
    matching = [like for like, special in _BY_PARAMETER.items() if every.intersection(special)]
    if matching == ["flash"] and every.intersection(_BY_PARAMETER["flash"]) == {"causal"} and _multiplies(function):
        return "sdpa"
    return matching[0] if matching else "sdpa"


def spec_by_default(function: ast.FunctionDef) -> str | None:
    """The `--spec` that it keeps when nothing is asked of it: causal, where an argument is on by default.

    Which corner its mask starts from where queries are fewer than keys is not known: `square` leaves those out.
    """
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    by_name = [
        *zip(reversed(positional), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    is_on = any(
        each.arg in _CAUSAL and isinstance(value, ast.Constant) and value.value is True for each, value in by_name
    )
    return "causal,square" if is_on else None


def _multiplies(function: ast.FunctionDef) -> bool:
    """Whether queries are multiplied by keys as they come, so that tokens stand before channels: heads are before them.

    Where tokens stand before heads, something is turned round first.
    """
    names = {each.arg for each in function.args.args}
    named = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
    turned = {each.id for each in named if isinstance(each.ctx, ast.Store)}
    of_queries = (name for each in ast.walk(function) for name in map(_root, _multiplied(each)))
    return any(name in names and name not in turned and name.lower() in _QUERY for name in of_queries)


def _multiplied(node: ast.AST) -> list[ast.AST]:
    """What a product of matrices is of, first; nothing for another expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        left = node.left
        return [left.left, left.right] if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult) else [left]
    if isinstance(node, ast.Call) and last_name(node.func) in ("matmul", "bmm"):
        is_method = isinstance(node.func, ast.Attribute) and last_name(node.func.value) not in ("torch", "F")
        return [node.func.value] if is_method else list(node.args[:1])  # type: ignore[attr-defined]
    return []


def _root(node: ast.AST) -> str:
    """The variable that an expression is a product or a cast of; "" for one that is laid out otherwise."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        return _root(node.left)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("float", "to", "half")
    ):
        return _root(node.func.value)
    return node.id if isinstance(node, ast.Name) else ""
