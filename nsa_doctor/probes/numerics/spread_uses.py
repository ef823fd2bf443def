"""Where a function uses a value as a standard deviation or as a variance: what it calls, and how it adds noise."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import distributions, nn

from nsa_doctor.probes.numerics.spread_names import DEVIATION, VARIANCE
from nsa_doctor.probes.numerics.spreads import Scope, Spread, called, number, spread_of

_NORMALS = (distributions.Normal, distributions.LogNormal)
_NOISE = frozenset({"randn", "randn_like", "normal", "normal_", "standard_normal"})
_MOST_TERMS = 12


@dataclass(frozen=True)
class Use:
    """A value that is used as `power` of a deviation; is_certain: by a call or a sampling, not by a division alone."""

    spread: Spread
    power: float
    node: ast.expr
    what: str
    is_certain: bool = True

    @property
    def implied(self) -> float:
        """Which power of the deviation the variable itself then is; 0 of a logarithm that is none of the use."""
        return 0.0 if self.spread.is_log else self.power / self.spread.exponent

    @property
    def agrees(self) -> bool:
        """Whether the variable is named for just that."""
        return abs(self.implied - self.spread.says.power) < 1e-6


def uses_in(scope: Scope, losses: frozenset[str]) -> Iterator[Use]:
    """All of a function; `losses` are the names that stand for a GaussianNLLLoss."""
    for node in scope.of.nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node, scope, losses)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            yield from _of_quotient(node, scope)
    yield from _of_sums(scope)


def _of_call(call: ast.Call, scope: Scope, losses: frozenset[str]) -> Iterator[Use]:
    for at, keyword, power in _taken(call, scope, losses):
        given = next((each.value for each in call.keywords if each.arg == keyword), None)
        plain = not any(isinstance(each, ast.Starred) for each in call.args)
        if given is None and plain and 0 <= at < len(call.args):
            given = call.args[at]
        spread = spread_of(given, scope) if given is not None else None
        if spread and spread.exponent and not (power == VARIANCE and keyword[:3] == "cov" and _may_be_matrix(spread)):
            yield Use(spread, power, call, ast.unparse(call.func))


def _may_be_matrix(spread: Spread) -> bool:
    """Whether its name, sigma, may be that of a covariance."""
    return not spread.says.is_sure


def _taken(call: ast.Call, scope: Scope, losses: frozenset[str]) -> list[tuple[int, str, float]]:
    """The places, the names and the powers of what a function takes."""
    if ast.unparse(call.func) in losses:
        return [(2, "var", VARIANCE)]
    target = resolved(call.func, scope)
    if target is F.gaussian_nll_loss:
        return [(2, "var", VARIANCE)]
    if isinstance(target, type) and issubclass(target, _NORMALS):
        return [(1, "scale", DEVIATION)]
    if isinstance(target, type) and issubclass(target, distributions.HalfNormal):
        return [(0, "scale", DEVIATION)]
    if isinstance(target, type) and issubclass(target, distributions.MultivariateNormal):
        return [(1, "covariance_matrix", VARIANCE), (-1, "scale_tril", DEVIATION), (-1, "precision_matrix", -VARIANCE)]
    if isinstance(target, type) and issubclass(target, distributions.LowRankMultivariateNormal):
        return [(2, "cov_diag", VARIANCE)]
    if target is torch.normal:
        return [(1, "std", DEVIATION)]
    if target is numpy.random.normal:
        return [(1, "scale", DEVIATION)]
    if isinstance(target, type(random.gauss)) and target in (random.gauss, random.normalvariate):
        return [(1, "sigma", DEVIATION)]
    if target in (nn.init.normal_, nn.init.trunc_normal_):
        return [(2, "std", DEVIATION)]
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "normal_" and target is None
    return [(1, "std", DEVIATION)] if is_method else []


def resolved(callee: ast.expr, scope: Scope) -> Any:
    """What a name of the file, or a name of a module of its, stands for."""
    names: list[str] = []
    while isinstance(callee, ast.Attribute):
        names.insert(0, callee.attr)
        callee = callee.value
    if not isinstance(callee, ast.Name) or callee.id in scope.assigned:
        return None
    value: Any = scope.of.names.get(callee.id)
    for name in names:
        value = vars(value).get(name) if hasattr(value, "__dict__") else None
    return value if value.__hash__ else None


def _of_sums(scope: Scope) -> Iterator[Use]:
    """What stands as a factor of noise in a sum, and what stands beside its logarithm in a divergence."""
    seen: set[int] = set()
    for node in scope.of.nodes:
        if not isinstance(node, ast.expr) and not isinstance(node, ast.AugAssign):
            continue
        if id(node) in seen or not _is_sum(node):
            continue
        terms = list(_terms(node, 1.0, seen))[:_MOST_TERMS]
        for term, _ in terms:
            if (spread := _factor_of_noise(term, scope)) and spread.exponent and len(terms) > 1:
                yield Use(spread, DEVIATION, term, f"`{ast.unparse(term)}`")
        yield from _of_divergence(terms, scope)


def _is_sum(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, (ast.Add, ast.Sub))
    return (
        isinstance(node, ast.Call) and called(node)[0] in ("add", "add_", "sub", "sub_") and len(called(node)[1]) == 2
    )


def _terms(node: ast.AST, factor: float, seen: set[int]) -> Iterator[tuple[ast.expr, float]]:
    """Those of a sum, and by which numbers they are multiplied."""
    seen.add(id(node))
    if isinstance(node, ast.AugAssign):
        yield node.target, factor
        yield from _terms(node.value, factor, seen)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand, -factor, seen)
    elif _is_sum(node):
        one, other = (node.left, node.right) if isinstance(node, ast.BinOp) else called(node)[1]  # type: ignore[arg-type]
        yield from _terms(one, factor, seen)
        yield from _terms(other, factor, seen)
    elif isinstance(node, ast.Call) and called(node)[0] in ("mul", "mul_") and len(called(node)[1]) == 2:
        of, by = called(node)[1]
        value = number(by)
        if value:
            yield from _terms(of, factor * value, seen)
        else:
            yield node, factor
    elif isinstance(node, ast.expr):
        yield node, factor


def _factor_of_noise(term: ast.expr, scope: Scope) -> Spread | None:
    """What noise of deviation 1 is multiplied by, where that is all there is."""
    factors = list(_factors(term, scope))
    noise = [each for each in factors if _is_noise(each, scope)]
    others = [each for each in factors if each not in noise and number(each) is None]
    if len(noise) != 1 or not others:
        return None
    if len(others) == 2 and ast.unparse(others[0]) == ast.unparse(others[1]):
        twice = spread_of(others[0], scope)
        return twice.to(2) if twice else None
    return spread_of(others[0], scope) if len(others) == 1 else None


def _factors(node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left, scope, depth)
        yield from _factors(node.right, scope, depth)
    elif isinstance(node, ast.Call) and called(node)[0] in ("mul", "mul_", "multiply") and len(called(node)[1]) == 2:
        for each in called(node)[1]:
            yield from _factors(each, scope, depth)
    elif isinstance(node, ast.Name) and depth < 3 and _is_product(value := scope.single(node.id)):
        yield from _factors(value, scope, depth + 1)  # type: ignore[arg-type]
    else:
        yield node


def _is_product(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call):
        return called(node)[0] in ("mul", "mul_", "multiply") and len(called(node)[1]) == 2
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _is_noise(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether it is drawn of a normal distribution of deviation 1, or is handed in by that name."""
    if isinstance(node, ast.Name):
        value = scope.single(node.id)
        if value is not None and depth < 3:
            return _is_noise(value, scope, depth + 1)
        return node.id in scope.assigned and node.id in ("noise", "eps", "epsilon") and value is None
    if isinstance(node, ast.Subscript):
        return _is_noise(node.value, scope, depth)
    if not isinstance(node, ast.Call):
        return False
    name, of = called(node)
    if name in ("to", "type_as", "view", "reshape", "unsqueeze", "float") and of:
        return _is_noise(of[0], scope, depth)
    if name not in _NOISE:
        return False
    spread = [number(each.value) for each in node.keywords if each.arg in ("std", "scale")]
    given = [number(each) for each in (node.args[1:2] if name in ("normal", "normal_") else [])]
    return all(value == 1 for value in (*spread, *given))


def _of_divergence(terms: list[tuple[ast.expr, float]], scope: Scope) -> Iterator[Use]:
    """`1 + logvar - mean ** 2 - logvar.exp()`: a square, a one, a logarithm, and what it is the logarithm of."""
    known = [(term, factor, spread_of(term, scope)) for term, factor in terms]
    if not any(spread is None and _is_square(term) for term, _, spread in known):
        return
    if not any(number(term) is not None for term, _, _ in known):
        return
    for term, factor, plain in known:
        for _, weight, log in known:
            if plain is None or log is None or plain.is_log or not log.is_log or plain.slot != log.slot:
                continue
            ratio = abs(log.exponent * weight / factor)
            if abs(ratio - abs(plain.exponent)) < 1e-6 and ratio:
                yield Use(plain, VARIANCE, term, f"`{ast.unparse(term)}` of a divergence", is_certain=False)


def _is_square(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return number(node.right) == 2
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.unparse(node.left) == ast.unparse(node.right)
    if not isinstance(node, ast.Call):
        return False
    name, of = called(node)
    return name == "square" or (name in ("pow", "pow_") and len(of) == 2 and number(of[1]) == 2)


def _of_quotient(node: ast.BinOp, scope: Scope) -> Iterator[Use]:
    """A difference over its deviation, or the square of one over its variance."""
    is_over = isinstance(node.op, ast.Div)
    spread = spread_of(node.right, scope)
    if spread is None or spread.is_log or not spread.exponent:
        return
    power = (
        VARIANCE if _is_square_of_difference(node.left, scope) else DEVIATION if _is_difference(node.left, scope) else 0
    )
    if power and is_over == (spread.exponent > 0):
        yield Use(spread, power if is_over else -power, node, f"`{ast.unparse(node)}`", is_certain=False)


def _is_difference(node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Name):
        value = scope.single(node.id)
        return value is not None and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)


def _is_square_of_difference(node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and number(node.left) is not None:
        return _is_square_of_difference(node.right, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and number(node.right) == 2:
        return _is_difference(node.left, scope)
    if isinstance(node, ast.Call) and _is_square(node):
        return _is_difference(called(node)[1][0], scope)
    return False
