"""Functions that put a model which they are given into evaluation mode and leave it there, for a loss that follows.

By their sources: `F` calls `eval()` and sets nothing back, and then it, or a function that calls it, calls the same
model again with gradients and returns a loss or goes back from one.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.own_files import OwnDefinition, own_definitions

_SWITCHES = re.compile(r"\.eval\(\s*\)|\.train\(\s*(mode\s*=\s*)?False")
_MEASURING = re.compile(
    r"eval|valid|test|predict|sampl|generat|infer|score|metric|measure|attack|explain|salien|attribut|adversar|probe|"
    r"fisher|influence|hessian|curvature|(^|_)(val|dev)(_|$)",
    re.IGNORECASE,
)
_KEPT = re.compile(
    r"teacher|ema|reference|(^|[._])ref($|[._])|frozen|fixed|target|(^|[._])old($|[._])|pretrained|vgg|lpips|percept|"
    r"inception|clip|dino|extractor|feature|judge|reward",
    re.IGNORECASE,
)
_BACK = re.compile(r"train|restore|(^|_)modes?($|_)", re.IGNORECASE)
_QUIET = ("no_grad", "inference_mode")
_HANDLING = re.compile(
    r"eval|train|to|cpu|cuda|half|float|double|(named_)?(parameters|modules|buffers|children)|apply|(load_)?state_dict|"
    r"zero_grad|requires_grad_|get_\w+|compile"
)


@dataclass(frozen=True)
class LeftByFunction:
    """The line that puts a model into evaluation mode, and the function and line that call it for a loss afterwards."""

    place: Place
    model: str
    caller: str
    line: int


def left_by_functions(sp: BuiltModule) -> Iterator[LeftByFunction]:
    """Those of the subject's own files, and of the packages around them."""
    yield from left_among(list(own_definitions(sp, _SWITCHES, with_packages=True)), _frozen_parts(sp))


def _frozen_parts(sp: BuiltModule) -> frozenset[tuple[str, str]]:
    """The class and the name of each attribute that is a module whose parameters are all frozen."""
    return frozenset(
        (type(holder).__name__, f"self.{name}")
        for holder in sp.module.modules()
        for name, part in holder.named_children()
        if not any(each.requires_grad for each in part.parameters())
    )


def left_among(
    every: Sequence[OwnDefinition], frozen: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[LeftByFunction]:
    """Those of these functions; `frozen` are attributes, by class and name, that hold what is not trained."""
    for each in every:
        for switch, model in _switches(each):
            if each.kind is not None and (each.kind.name, model) in frozen:
                continue
            place = each.place(switch.lineno)
            if _is_training(each) and (line := _own_use(each, switch, model, every)):
                yield LeftByFunction(place, model, each.node.name, line)
            elif switch in _statements(each.node.body) and not _backs(each.nodes, switch.lineno):
                for caller in every:
                    line = _use_after_call(caller, each, model, every)
                    if line:
                        yield LeftByFunction(place, model, caller.node.name, line)
                        break


def _switches(each: OwnDefinition) -> Iterator[tuple[ast.expr, str]]:
    """Calls that put a parameter of a function, or the object itself or what it holds, into evaluation mode."""
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in each.nodes):
        return
    given = {argument.arg for argument in each.parameters}
    for node in each.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not _is_off(node):
            continue
        model = ast.unparse(node.func.value)
        is_own = each.is_method and re.fullmatch(r"self(\.\w+)?", model) is not None
        if (model in given or is_own) and not _KEPT.search(model):
            yield node, model


def _is_off(call: ast.Call) -> bool:
    """Whether it is `eval()` or `train(False)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "eval":
        return not values
    return name == "train" and len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is False


def _is_training(each: OwnDefinition) -> bool:
    """Whether it goes back from a loss or returns one, and its name does not say that it measures."""
    is_quiet = any(_is_quiet(ast.unparse(decorator)) for decorator in each.node.decorator_list)
    if is_quiet or _MEASURING.search(each.node.name) or _is_of_other_gradients(each):
        return False
    for node in each.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            return True
        if isinstance(node, ast.Return) and node.value is not None:
            names = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            if "loss" in each.node.name or any("loss" in name for name in names):
                return True
    return False


def _is_of_other_gradients(each: OwnDefinition) -> bool:
    """Whether it goes back for the gradient of an input that it makes, or reads gradients and takes no step."""
    calls = [node for node in each.nodes if isinstance(node, ast.Call)]
    methods = {node.func.attr: node.func.value for node in calls if isinstance(node.func, ast.Attribute)}
    words = [word for call in calls for word in call.keywords if word.arg == "requires_grad"]
    if any(ast.unparse(word.value) == "True" for word in words) or isinstance(methods.get("requires_grad_"), ast.Call):
        return True
    reads = any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in each.nodes)
    return reads and "step" not in methods


def _is_quiet(text: str) -> bool:
    return any(word in text for word in _QUIET)


def _own_use(each: OwnDefinition, switch: ast.expr, model: str, every: Sequence[OwnDefinition]) -> int:
    """The line of its first call of the model with gradients, after one without in which evaluation mode was due."""
    block = next((found for found in _blocks(each.node) if switch in _statements(found)), None)
    if block is None:
        return 0
    rest = block[_statements(block).index(switch) + 1 :]
    uses = _uses(each, _reached(rest), model)
    loud = next((line for line, is_quiet in uses if not is_quiet), 0)
    is_due = any(is_quiet and line < loud for line, is_quiet in uses)
    return loud if is_due and not _may_be_set_back(each, switch.lineno, loud, model, None, every) else 0


def _use_after_call(caller: OwnDefinition, called: OwnDefinition, model: str, every: Sequence[OwnDefinition]) -> int:
    """The line of a call of the model with gradients that follows one of the function which leaves its mode."""
    if caller is called or not _is_training(caller):
        return 0
    for call in caller.nodes:
        given = _given(caller, call, called, model) if isinstance(call, ast.Call) else None
        if given is None or not isinstance(call, ast.Call):
            continue
        for block in _blocks(caller.node):
            at = next((at for at, stmt in enumerate(block) if any(it is call for it in ast.walk(stmt))), None)
            if at is None:
                continue
            after = _uses(caller, _reached(block[at + 1 :]), given)
            loud = next((line for line, is_quiet in after if not is_quiet), 0)
            if loud and not _may_be_set_back(caller, call.lineno, loud, given, call, every):
                return loud
            if isinstance(block[at], (ast.For, ast.While)) and (line := _again(caller, block[at], given, call, every)):
                return line
    return 0


def _again(caller: OwnDefinition, loop: ast.stmt, model: str, call: ast.Call, every: Sequence[OwnDefinition]) -> int:
    """The line of the first call of the model with gradients in a loop, which comes again after that call."""
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    uses = _uses(caller, [loop], model)
    loud = next((line for line, is_quiet in uses if not is_quiet and line < call.lineno), 0)
    return loud if loud and not _may_be_set_back(caller, first, last + 1, model, call, every) else 0


def _given(caller: OwnDefinition, call: ast.Call, called: OwnDefinition, model: str) -> str | None:
    """What the caller names the model that this call gives to that function; None for a call of another one."""
    name = called.node.name
    if called.is_method:
        is_it = caller.kind is called.kind and ast.unparse(call.func) == f"self.{name}"
    else:
        is_it = isinstance(call.func, ast.Name) and _is_defined_by(caller.names.get(call.func.id), called)
    if not is_it or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if model.startswith("self"):
        return model
    names = [each.arg for each in called.parameters]
    values: dict[str | None, ast.expr] = {**dict(zip(names, call.args)), **{k.arg: k.value for k in call.keywords}}  # noqa: B905
    value = values.get(model)
    return ast.unparse(value) if isinstance(value, (ast.Name, ast.Attribute)) else None


def _is_defined_by(value: Any, definition: OwnDefinition) -> bool:
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    return code is not None and (code.co_filename, code.co_name) == (definition.file, definition.node.name)


def _may_be_set_back(
    each: OwnDefinition, first: int, last: int, model: str, call: ast.Call | None, every: Sequence[OwnDefinition]
) -> bool:
    """Whether something between two lines sets a mode, or hands the model to what is not known to set none."""
    if _backs([node for node in each.nodes if getattr(node, "lineno", last) < last], first):
        return True
    for node in each.nodes:
        if not isinstance(node, ast.Call) or node is call or not first < node.lineno < last:
            continue
        given = [ast.unparse(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))]
        if model in given:
            known = [
                other
                for other in every
                if isinstance(node.func, ast.Name) and _is_defined_by(each.names.get(node.func.id), other)
            ]
            if not known or any(_backs(other.nodes, 0) for other in known):
                return True
    return False


def _backs(nodes: Sequence[ast.AST], line: int) -> bool:
    """Whether one of these nodes behind a line sets a mode other than that of evaluation, by what it is called."""
    for node in nodes:
        if getattr(node, "lineno", 0) <= line:
            continue
        if isinstance(node, ast.Call) and not _is_off(node):
            name = ast.unparse(node.func).rpartition(".")[2]
            if _BACK.search(name) and name not in _QUIET:
                return True
        if isinstance(node, ast.Attribute) and node.attr == "training" and isinstance(node.ctx, ast.Store):
            return True
    return False


def _uses(each: OwnDefinition, statements: Sequence[ast.stmt], model: str) -> list[tuple[int, bool]]:
    """The lines that call the model or a method of it, in order, and whether each is one without gradients."""
    inside = {id(node) for stmt in statements for node in ast.walk(stmt)}
    quiet = {
        id(inner)
        for node in each.nodes
        if isinstance(node, ast.With) and any(_is_quiet(ast.unparse(item.context_expr)) for item in node.items)
        for inner in ast.walk(node)
    }
    found = [node for node in each.nodes if isinstance(node, ast.Call) and id(node) in inside and _is_use(node, model)]
    uses = ((node, id(node) in quiet) for node in found)
    return sorted((node.lineno, is_quiet) for node, is_quiet in uses if is_quiet or _is_of_loss(each, node))


def _is_of_loss(each: OwnDefinition, call: ast.Call) -> bool:
    """Whether what comes of a call is returned or gone back from, by way of the names that it is given."""
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
    of_it: set[str] = set()
    for stmt in sorted((node for node in each.nodes if isinstance(node, kinds)), key=lambda node: node.lineno):
        inner = list(ast.walk(stmt.value)) if stmt.value is not None else []
        if not any(node is call or (isinstance(node, ast.Name) and node.id in of_it) for node in inner):
            continue
        if isinstance(stmt, ast.Return) or any(
            isinstance(node, ast.Attribute) and node.attr == "backward" for node in inner
        ):
            return True
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [getattr(stmt, "target", None)]
        of_it |= {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}
    return False


def _is_use(call: ast.Call, model: str) -> bool:
    text, _, method = ast.unparse(call.func).rpartition(".")
    return ast.unparse(call.func) == model or (text == model and not _HANDLING.fullmatch(method))


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a function, the outermost first."""
    for each in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            found = getattr(each, name, None)
            if isinstance(found, list) and found and isinstance(found[0], ast.stmt):
                yield found


def _statements(block: Sequence[ast.stmt]) -> list[ast.expr]:
    """The expression of each statement that is one alone; the statement's place is kept."""
    return [each.value if isinstance(each, ast.Expr) else ast.Constant(None) for each in block]


def _reached(block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements up to the first that returns whatever comes."""
    found: list[ast.stmt] = []
    for each in block:
        found.append(each)
        inner = each.body if isinstance(each, ast.With) else [each]
        if any(isinstance(stmt, (ast.Return, ast.Raise, ast.Continue, ast.Break)) for stmt in inner):
            break
    return found
