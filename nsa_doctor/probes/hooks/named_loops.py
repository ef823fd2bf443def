"""Loops of a module's methods over the names of its parameters, and conditions there that no name can meet."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import Line
from nsa_doctor.probes.hooks.attribute_lines import methods_of

_LOOPED = ("named_parameters", "named_modules", "named_children")
_ASKING = ("endswith", "startswith")
_ROWS = (ast.Tuple, ast.List, ast.Set)
_USUAL = frozenset(("weight", "bias", "norm", "module", "model", "lora"))
_TORCHS = re.compile(
    r"(in|out|q|k|v)_proj(_weight|_bias)?|(weight|bias)_(ih|hh)\w*|bias_[kv]|weight_[gv]|original\d?|parametrizations"
    r"|linear[12]|self_attn|multihead_attn|norm[123]|layers?|running_(mean|var)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MOST_FILES = 200


@dataclass(frozen=True)
class UnmetName:
    """A condition that asks for names which no parameter has: where it stands, and the texts it asks for."""

    holder: nn.Module
    line: Line
    texts: tuple[str, ...]


def unmet_names(root: nn.Module, files: Sequence[str]) -> Iterator[UnmetName]:
    """Those under which values are written in place, whose words stand nowhere else in the files of the subject."""
    names = [name for name, _ in [*root.named_parameters(), *root.named_modules(), *root.named_buffers()]]
    seen: set[tuple[str, int]] = set()
    for holder in {type(each): each for each in root.modules()}.values():
        for file, method in methods_of(holder):
            if file not in files:
                continue
            for loop, name in _loops(method):
                for condition in _conditions(loop, name):
                    texts = tuple(_texts(condition.test, name))
                    place = (file, condition.test.lineno)
                    is_met = not texts or any(text in each for text in texts for each in names)
                    if place in seen or is_met or not _writes(condition.body):
                        continue
                    seen.add(place)
                    if not _is_elsewhere(texts, loop, file, files):
                        yield UnmetName(holder, Line(file=file, line=place[1], function=method.name), texts)


def _loops(method: ast.AST) -> Iterator[tuple[ast.For, str]]:
    """Loops over names and what bears them, with the variable of the name."""
    for node in ast.walk(method):
        if not (isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Tuple)):
            continue
        function, first = node.iter.func, node.target.elts[0]
        if isinstance(function, ast.Attribute) and function.attr in _LOOPED and isinstance(first, ast.Name):
            yield node, first.id


def _conditions(loop: ast.For, name: str) -> Iterator[ast.If]:
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(
            isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.test)
        ):
            yield node


def _texts(test: ast.expr, name: str) -> list[str]:
    """What the condition asks the name for; nothing where it may be met without that."""
    if any(isinstance(each, (ast.Not, ast.NotIn, ast.NotEq)) for each in ast.walk(test)):
        return []
    if isinstance(test, ast.BoolOp):
        parts = [_texts(each, name) for each in test.values]
        is_open = isinstance(test.op, ast.Or) and not all(parts)  # one of the alternatives is another question
        return [] if is_open else [text for part in parts for text in part]
    asked: list[ast.expr] = []
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr in _ASKING:
        asked = test.args if _is_name(test.func.value, name) else []
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.Eq)):
        left, right = test.left, test.comparators[0]
        asked = [right] if _is_name(left, name) else [left] if _is_name(right, name) else []
    constants = [part for each in asked for part in (each.elts if isinstance(each, _ROWS) else [each])]
    texts = [each.value for each in constants if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return texts if len(texts) == len(constants) else []


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _writes(body: Sequence[ast.stmt]) -> bool:
    """Whether something there is called that writes in place by its name, as what initialises does."""
    calls = [node.func for each in body for node in ast.walk(each) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Attribute) and each.attr.endswith("_") for each in calls)


def _is_elsewhere(texts: Sequence[str], loop: ast.For, file: str, files: Sequence[str]) -> bool:
    """Whether a word that is asked for has another place in the sources, or is one of torch's: an option left off."""
    words = {word for text in texts for word in _WORD.findall(text)} - _USUAL
    if not words or any(_TORCHS.fullmatch(word) for word in words):
        return True
    inside = range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
    for other in files[:_MOST_FILES]:
        text = attempt(lambda other=other: Path(other).read_text(encoding="utf-8"))
        if isinstance(text, Caught):
            return True
        for number, line in enumerate(text.splitlines(), start=1):
            if not (other == file and number in inside) and words & set(_WORD.findall(line.partition("#")[0])):
                return True
    return False
