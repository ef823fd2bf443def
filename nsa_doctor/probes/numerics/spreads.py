"""Deviations and variances in expressions: of which variable, to which power, by names and by one assignment."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from nsa_doctor.probes.model.own_files import OwnDefinition
from nsa_doctor.probes.numerics.spread_names import DEVIATION, VARIANCE, Named, named

_LIBRARIES = frozenset({"torch", "math", "np", "numpy", "F", "jnp"})
_UNCHANGED = frozenset({
    *("clamp", "clamp_", "clamp_min", "clamp_max", "clip", "maximum", "minimum", "unsqueeze", "squeeze", "expand"),
    *("expand_as", "to", "float", "double", "half", "type_as", "view", "view_as", "reshape", "detach", "contiguous"),
    *("repeat", "flatten", "cuda", "cpu", "clone", "broadcast_to", "diag", "diag_embed", "transpose"),
    *("repeat_interleave", "max", "gather"),
    *("permute", "unflatten", "diagonal", "item", "numpy", "as_tensor", "tensor", "requires_grad_", "type"),
})  # fmt: skip
_POWERS = {"sqrt": 0.5, "sqrt_": 0.5, "rsqrt": -0.5, "square": 2.0, "reciprocal": -1.0}
_COMPUTED = {"std": DEVIATION, "var": VARIANCE}
_SMALL = ("eps", "epsilon", "jitter", "tiny", "min_std", "min_var", "min_sigma", "min_scale")


@dataclass(frozen=True)
class Spread:
    """A power of a variable that is named for a deviation, a variance or a logarithm of one.

    is_log: the value is a logarithm, `exponent` times that of the variable; made: the assignment that it went through.
    """

    slot: str
    name: str
    says: Named
    exponent: float = 1.0
    is_log: bool = False
    made: ast.Assign | None = None

    def to(self, power: float) -> "Spread | None":
        """Raised to a power; None of a logarithm."""
        return None if self.is_log else replace(self, exponent=self.exponent * power)

    def times(self, number: float) -> "Spread | None":
        """Multiplied by a number, which is a power where it is a logarithm."""
        if self.is_log and number:
            return replace(self, exponent=self.exponent * number)
        return self if number > 0 else None


@dataclass(eq=False)
class Scope:
    """The variables of a function, and what each is assigned; None stands for what cannot be read."""

    of: OwnDefinition
    attributes: dict[str, list[tuple[ast.expr, "Scope"]]] = field(default_factory=dict)

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr | None]]:
        """The expressions that each variable is given, by its name."""
        found: dict[str, list[ast.expr | None]] = {}
        given = self.of.node.args
        for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if argument is not None:
                found.setdefault(argument.arg, []).append(None)
        for node in self.of.nodes:
            for name, value in _assignments(node):
                found.setdefault(name, []).append(value)
        return found

    @cached_property
    def statements(self) -> dict[str, ast.Assign]:
        """The assignment of each variable that has one."""
        nodes = [node for node in self.of.nodes if isinstance(node, ast.Assign)]
        return {target.id: node for node in nodes for target in node.targets if isinstance(target, ast.Name)}

    def single(self, name: str) -> ast.expr | None:
        """The one expression that a variable is given."""
        values = self.assigned.get(name, [])
        return values[0] if len(values) == 1 else None

    def slot(self, name: str) -> str:
        """What tells a variable from others."""
        return f"{self.of.file}:{self.of.node.lineno}:{self.of.name}:{name}"

    def own_slot(self, attribute: str) -> str:
        """What tells an attribute of the function's own object from others."""
        return f"{self.of.file}:{self.of.kind.lineno if self.of.kind else 0}:self.{attribute}"


def spread_of(node: ast.expr, scope: Scope, seen: frozenset[str] = frozenset()) -> Spread | None:
    """What an expression is a power of; None where it is of none, or of more than one variable."""
    if isinstance(node, ast.Name):
        return _of_variable(node.id, scope, seen)
    if isinstance(node, ast.Attribute):
        return _of_attribute(node, scope, seen)
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(key, str):
            says = named(key)
            return _base(scope.slot(ast.unparse(node)), ast.unparse(node), says) if says else None
        return spread_of(node.value, scope, seen)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = spread_of(node.operand, scope, seen)
        return inner.times(-1) if inner else None
    if isinstance(node, ast.BinOp):
        return _of_arithmetic(node, scope, seen)
    if isinstance(node, ast.Call):
        return _of_call(node, scope, seen)
    return None


def number(node: ast.expr) -> float | None:
    """The value of a constant, or of constants that are divided or multiplied."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        one, other = number(node.left), number(node.right)
        if one is None or other is None or (isinstance(node.op, ast.Div) and not other):
            return None
        return one * other if isinstance(node.op, ast.Mult) else one / other
    return None


def called(call: ast.Call) -> tuple[str, list[ast.expr]]:
    """The last name of what is called and what it works on: a method's object first."""
    if isinstance(call.func, ast.Attribute):
        root = call.func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        is_of_library = isinstance(root, ast.Name) and root.id in _LIBRARIES
        return call.func.attr, [*call.args] if is_of_library else [call.func.value, *call.args]
    return (call.func.id if isinstance(call.func, ast.Name) else ""), [*call.args]


def is_small(node: ast.expr) -> bool:
    """Whether it is a number, or named for one that is added for safety."""
    text = ast.unparse(node).lower()
    return number(node) is not None or any(text.endswith(each) for each in _SMALL)


def _base(slot: str, name: str, says: Named) -> Spread:
    return Spread(slot, name, says, is_log=says.is_log)


def _of_variable(name: str, scope: Scope, seen: frozenset[str]) -> Spread | None:
    values, slot = scope.assigned.get(name, []), scope.slot(name)
    if slot in seen:
        says = named(name)
        return _base(slot, name, says) if says else None
    found = [spread_of(value, scope, seen | {slot}) for value in values if value is not None]
    if len(values) == 1 and found and found[0]:
        return replace(found[0], made=scope.statements.get(name) or found[0].made)
    says = named(name)
    if says is None or any(_is_otherwise(value, says) for value in values):
        return None
    if any(each and (each.slot != slot or each.exponent != 1) for each in found):
        return None
    if any(each and each.is_log != says.is_log for each in found):
        return None
    return _base(slot, name, says)


def _of_attribute(node: ast.Attribute, scope: Scope, seen: frozenset[str]) -> Spread | None:
    is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
    slot = scope.own_slot(node.attr) if is_own else scope.slot(ast.unparse(node))
    values = scope.attributes.get(node.attr, []) if is_own and slot not in seen else []
    found = [spread_of(value, inner, seen | {slot}) for value, inner in values]
    if len(values) == 1 and found[0]:
        return found[0]
    says = named(node.attr)
    if says is None or any(_is_otherwise(value, says) for value, _ in values):
        return None
    if any(each and each.slot != slot for each in found):
        return None
    return _base(slot, ast.unparse(node), says)


def _is_otherwise(value: ast.expr | None, says: Named) -> bool:
    """Whether a variable is given a number, a root where its name says a variance, or a square where a deviation."""
    if value is None or says.is_log:
        return False
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and is_small(value.right):
        return _is_otherwise(value.left, says)
    name, of = called(value) if isinstance(value, ast.Call) else ("", [])
    if name in _UNCHANGED and of:
        return _is_otherwise(of[0], says)
    power = _POWERS.get(name)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow):
        power = number(value.right)
    if name == "exp" and of:
        half, doubled = ast.unparse(of[0]).startswith("0.5 * "), ast.unparse(of[0]).startswith("2 * ")
        power = 0.5 if half else 2.0 if doubled else None
    is_given = number(value) is not None
    return is_given or (says.power, power) in ((VARIANCE, 0.5), (DEVIATION, 2.0))


def _of_arithmetic(node: ast.BinOp, scope: Scope, seen: frozenset[str]) -> Spread | None:
    left, right = node.left, node.right
    if isinstance(node.op, ast.Pow):
        power, inner = number(right), spread_of(left, scope, seen)
        return inner.to(power) if inner and power is not None else None
    if isinstance(node.op, (ast.Add, ast.Sub)):
        if is_small(right):
            return spread_of(left, scope, seen)
        return spread_of(right, scope, seen) if is_small(left) and isinstance(node.op, ast.Add) else None
    if isinstance(node.op, ast.Mult):
        for one, other in ((left, right), (right, left)):
            if (factor := number(one)) is not None:
                inner = spread_of(other, scope, seen)
                return inner.times(factor) if inner else None
            if isinstance(one, ast.Call) and called(one)[0] in ("eye", "ones", "ones_like"):
                return spread_of(other, scope, seen)
        if ast.unparse(left) == ast.unparse(right):
            inner = spread_of(left, scope, seen)
            return inner.to(2) if inner else None
        return None
    if isinstance(node.op, ast.Div):
        if (divisor := number(right)) is not None and divisor:
            inner = spread_of(left, scope, seen)
            return inner.times(1 / divisor) if inner else None
        if number(left) is not None:
            inner = spread_of(right, scope, seen)
            return inner.to(-1) if inner else None
    return None


def _of_call(call: ast.Call, scope: Scope, seen: frozenset[str]) -> Spread | None:
    name, of = called(call)
    if name in _COMPUTED and of and not (isinstance(of[0], ast.Name) and of[0].id == "self"):
        text = ast.unparse(call)
        return Spread(f"{scope.slot(text)}:{call.lineno}", text, Named(_COMPUTED[name], True, False))
    inner = spread_of(of[0], scope, seen) if of else None
    if inner is None:
        return None
    if name in _UNCHANGED:
        return inner
    if name in ("exp", "exp_"):
        return replace(inner, is_log=False) if inner.is_log else None
    if name in ("log", "log_"):
        return None if inner.is_log else replace(inner, is_log=True)
    if name in _POWERS:
        return inner.to(_POWERS[name])
    operand = number(of[1]) if len(of) == 2 else None
    if name in ("pow", "pow_"):
        return inner.to(operand) if operand is not None else None
    if name in ("mul", "mul_", "multiply", "div", "div_") and operand:
        return inner.times(1 / operand if name.startswith("div") else operand)
    if name in ("add", "add_") and len(of) == 2 and is_small(of[1]):
        return inner
    return None


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and isinstance(node.target, ast.Name):
        if node.value is not None:
            yield node.target.id, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        name = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        yield node.target.id, ast.copy_location(ast.BinOp(name, node.op, node.value), node)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _targets(node.target, None)
    elif isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _targets(item.optional_vars, None)


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        is_pairwise = len(values) == len(target.elts)
        for at, each in enumerate(target.elts):
            yield from _targets(each, values[at] if is_pairwise else None)
