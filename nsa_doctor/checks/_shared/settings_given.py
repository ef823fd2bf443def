"""Settings that constructors are given and that come to nothing."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument, unread_arguments
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

# What a place in a model, a way to run or an interface asks for, whoever is given it.
_OF_NO_EFFECT = re.compile(
    r"_|(layer|block|head|depth)?_?(idx|index|id|num|number|name)$|.*(name|device|dtype|debug|verbose|seed|path|dir)$"
    r"|(max|min|num|n)_?(seq|pos|len|token|ctx|context|source|target).*|.*(seq_?len|length|positions|block_size|backend)$"
    r"|.*(impl|implementation|fused|flash|efficient|checkpoint|checkpointing|cache|init|init_std|initializer.*|compat.*)$"
)
_MEANT = re.compile(r"unused|not used|no effect|ignored?|deprecat|compatib|legacy|reserved|placeholder|for now", re.I)
_ALL_AT_ONCE = re.compile(
    r"\b(locals|vars|hyperparameters|hparams|register_to_config|capture_init|__dict__|signature)\b"
)


def idle_settings(subject: Subject) -> tuple[nn.Module, list[UnreadArgument]]:
    """The subject's module, and what parts of it were given, beside their defaults, and do not read."""
    with unread_arguments(_is_setting, _reads) as unread:
        module = built(subject).module
    parts = set(module.modules())
    return module, [each for each in unread if each.module in parts and _is_idle(each)]


def _is_setting(name: str, value: Any) -> bool:
    is_plain = isinstance(value, (bool, int, float, str)) or (
        isinstance(value, (tuple, list)) and all(isinstance(each, (bool, int, float, str)) for each in value)
    )
    return is_plain and not _OF_NO_EFFECT.match(name) and "drop" not in name  # shares of dropout are FWD231's


def _is_idle(given: UnreadArgument) -> bool:
    """Whether it was given another value than its default, and no line of its class names it or says why not."""
    if given.is_written_out:
        return False
    default = attempt(lambda: given.default)
    if default is inspect.Parameter.empty or not (default is None or _is_setting(given.name, default)):
        return False
    if default == given.value:
        return False
    texts = [attempt(lambda kind=kind: inspect.getsource(kind)) for kind in type(given.module).__mro__]
    own = [text for text in texts if isinstance(text, str) and not text.startswith("class Module:")]
    return bool(own) and not any(_ALL_AT_ONCE.search(text) or _names(text, given.name) for text in own)


def _names(text: str, name: str) -> bool:
    """Whether a class's source reads it as an attribute or key, in any method, or says that it is not meant to be."""
    if re.search(rf"(\.{name}\b|[\"']{name}[\"'])", text):
        return True
    return any(_MEANT.search(line) for line in text.splitlines() if re.search(rf"\b{name}\b", line))


def _reads(code: CodeType, name: str) -> bool:
    """Whether a constructor reads its argument other than to refuse values of it."""
    source = attempt(lambda: inspect.getsource(code))
    tree = attempt(lambda: ast.parse(textwrap.dedent(str(source)))) if isinstance(source, str) else None
    if not isinstance(tree, ast.Module):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for statement in _working(tree.body[0])
        for node in ast.walk(statement)
    )


def _working(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a function's body, without assertions and what does nothing but raise or warn."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.Assert) or (isinstance(child, ast.If) and _refuses(child)):
            continue
        yield child


def _refuses(node: ast.If) -> bool:
    return not node.orelse and all(isinstance(each, ast.Raise) or _warns(each) for each in node.body)


def _warns(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "warn" in ast.unparse(node.value.func)
