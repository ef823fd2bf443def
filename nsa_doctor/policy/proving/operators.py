"""Small changes to arithmetic, comparisons, conditions and numbers, as a tired person makes them."""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from nsa_doctor.policy.proving.source import Edit, Source

Operator = Callable[[ast.AST, Source], Iterator[Edit]]
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_WITH_DIMENSIONS = frozenset(
    (
        *("softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min"),
        *("var", "std", "norm", "prod", "any", "all", "cumsum", "cumprod", "sort", "argsort", "topk", "gather"),
        *("scatter", "index_select", "cat", "concat", "stack", "chunk", "split", "unbind", "select", "narrow"),
        *("transpose", "swapaxes", "permute", "movedim", "unsqueeze", "squeeze", "flatten", "unflatten", "flip"),
        *("roll", "repeat_interleave", "size", "diff", "normalize", "glu"),
    )
)
_OF_MASKS = frozenset({"tril", "triu", "tril_", "triu_", "tril_indices", "triu_indices"})


def arithmetic(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`a + b` becomes `a - b`, in place too; * and /, // and %, ** and *, & and | likewise."""
    if isinstance(node, ast.BinOp):
        left, right = node.left, node.right
    elif isinstance(node, ast.AugAssign):
        left, right = node.target, node.value
    else:
        return
    pair = _ARITHMETIC.get(type(node.op))
    is_text = isinstance(left, ast.Constant) and isinstance(left.value, str)
    if pair is not None and not is_text and (place := source.between(left, right, pair[0])) is not None:
        yield Edit(start=place[0], end=place[1], new=pair[1], kind="arithmetic")


def comparison(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`a < b` becomes `a <= b`, `==` becomes `!=`, and back."""
    if not isinstance(node, ast.Compare):
        return
    for left, operator, right in zip((node.left, *node.comparators), node.ops, node.comparators, strict=False):
        pair = _COMPARISONS.get(type(operator))
        if pair is not None and (place := source.between(left, right, pair[0])) is not None:
            yield Edit(start=place[0], end=place[1], new=pair[1], kind="comparison")


def condition(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A condition becomes its opposite, `and` becomes `or`, and back."""
    if isinstance(node, ast.If | ast.IfExp):
        start, end = source.span(node.test)
        yield Edit(start=start, end=end, new=f"(not ({source.segment(node.test)}))", kind="condition")
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            if (place := source.between(left, right, old)) is not None:
                yield Edit(start=place[0], end=place[1], new=new, kind="condition")


def sign(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`-a`, `not a` and `~a` become `a`; of numbers `number` says more."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd) and not _is_number(node):
        start, _ = source.span(node)
        yield Edit(start=start, end=source.span(node.operand)[0], new="", kind="sign")


def flag(node: ast.AST, source: Source) -> Iterator[Edit]:
    """True becomes False, and back."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        start, end = source.span(node)
        yield Edit(start=start, end=end, new=str(not node.value), kind="flag")


def number(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A number becomes its neighbours, its opposite, 0 or 1; a factor or an exponent its square or its double too."""
    if not _is_number(node) or _is_number(source.parents.get(node)):
        return
    assert isinstance(node, ast.Constant | ast.UnaryOp)
    value = ast.literal_eval(node)
    start, end = source.span(node)
    kind = _kind_of_number(node, source)
    for other in _others(value, kind):
        yield Edit(start=start, end=end, new=repr(other), kind=kind)


def _others(value: int | float, kind: str) -> list[int | float]:
    if isinstance(value, int):
        near = [value + 1, value - 1]
        far = {"number": [-value], "scale": [-value, value * value, 1]}.get(kind, [])
        return [other for other in dict.fromkeys((*near, *far)) if other != value]
    far_floats = [2 * value, -value] if kind == "scale" else [0.0, 1.0, -value]
    return [other for other in dict.fromkeys(far_floats) if other != value]


def _kind_of_number(node: ast.Constant | ast.UnaryOp, source: Source) -> str:
    """What the number is there for, as far as its neighbourhood says."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow | ast.Mult | ast.Div) and parent.right is node:
        return "scale"
    around: ast.AST | None = parent.value if isinstance(parent, ast.Starred) else parent
    while isinstance(around, ast.Tuple | ast.List | ast.keyword | ast.Slice):
        around = source.parents.get(around)
    if isinstance(around, ast.Subscript) and around.value is not node:
        return "index"
    if isinstance(around, ast.Call):
        name = called(around)
        return "mask" if name in _OF_MASKS else "dimension" if name in _WITH_DIMENSIONS else "number"
    return "number"


def called(call: ast.Call) -> str:
    """The bare name of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _is_number(node: ast.AST | None) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
