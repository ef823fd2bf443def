"""Settings that constructors are given and that come to nothing."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.given_for_nothing import FunctionsRun, GivenForNothing
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument, unread_arguments
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

# What a place in a model, a way to run or an interface asks for, whoever is given it.
_OF_NO_EFFECT = re.compile(
    r"_|(layer|block|head|depth)?_?(idx|index|id|num|number|name)$|.*(name|device|dtype|debug|verbose|seed|path|dir)$"
    r"|(max|min|num|n)_?(seq|pos|len|token|ctx|context|source|target).*|.*(seq_?len|length|positions|block_size|backend)$"
    r"|temperature|top_[kp]|.*token(_id)?|vocab_size|inplace|(\w+_)?eps(ilon)?$"
    r"|.*(impl|implementation|fused|flash|efficient|checkpoint|checkpointing|cache|init|init_std|initializer.*|compat.*)$"
)
_MEANT = re.compile(
    r"unused|not used|no effect|ignored?|deprecat|compatib|legacy|reserved|placeholder|for now|dummy|interchangeab"
    r"|mirror|interface|same signature|noqa|pylint",
    re.IGNORECASE,
)
# What is said beside an argument that is taken and left alone.
_LEFT_ALONE = re.compile(
    r"\b(for|api|interface)\s+(\w+\s+)?(parity|consistency)\b|\b(parity|consistency|consistent) with\b|does nothing"
    r"|does not matter|\bno (use|need)\b|not (needed|required|necessary|read)|unneeded|needless|discarded|dropped"
    r"|\binterface\b|\bsignature\b(?!\()|\bvmap\b|\bNoPE\b",
    re.IGNORECASE,
)
_ROOTS = (nn.Module, object)
_LENGTH = 19
_LINES_ON = 3  # in which what is said of a name may stand
_ALL_AT_ONCE = re.compile(
    r"\b(locals|vars|save_hyperparameters|hparams|register_to_config|capture_init|__dict__|f_locals|currentframe|_getframe)\b"
)


def idle_settings(subject: Subject) -> tuple[nn.Module, list[UnreadArgument]]:
    """The subject's module, and what parts of it were given, beside their defaults, and do not read."""
    with unread_arguments(_is_setting, _reads) as unread:
        module = built(subject).module
    parts = set(module.modules())
    return module, [each for each in unread if each.module in parts and _is_idle(each)]


def given_without_use(subject: Subject) -> Iterator[GivenForNothing]:
    """Arguments that calls in a pass give, and that functions do no more than convert; each once."""
    run = FunctionsRun(FrameFilter(subject.packages))
    for mode in dict.fromkeys(("eval" if "eval" in subject.modes else subject.modes[0], subject.modes[0])):
        sp = built(subject, mode=mode)
        with run.noting(), torch.no_grad():
            sp(sp.input(min(_LENGTH, subject.max_length), 2))
    found = run.given_for_nothing(sp.module)
    yield from (each for each in found if not is_said_of(each.name, each.source))


def is_said_to_be_meant(text: str) -> bool:
    """Whether some line says that something is not meant to be used."""
    return _MEANT.search(text) is not None


def is_said_of(name: str, source: str, words: re.Pattern[str] = _LEFT_ALONE) -> bool:
    """Whether a line of a source that names it, or one beside that, says that it is not meant to be used.

    `words` are those that say so too, beside what says it of anything.
    """
    lines = source.splitlines()
    named = [at for at, line in enumerate(lines) if re.search(rf"\b{name}\b", line)]
    beside = {line for at in named for line in lines[max(at - 1, 0) : at + _LINES_ON]}
    return any(is_said_to_be_meant(line) or words.search(line) is not None for line in beside)


def _is_setting(name: str, value: Any) -> bool:
    is_plain = isinstance(value, (bool, int, float, str)) or (
        isinstance(value, (tuple, list)) and all(isinstance(each, (bool, int, float, str)) for each in value)
    )
    return is_plain and not _OF_NO_EFFECT.match(name) and "drop" not in name  # shares of dropout are FWD231's


def _is_idle(given: UnreadArgument) -> bool:
    """Whether it was given another value than its default, and no line of its class names it or says why not."""
    kind = type(given.module)
    default = attempt(lambda: given.default)
    if (
        not given.is_meant
        or default is inspect.Parameter.empty
        or not (default is None or _is_setting(given.name, default))
    ):
        return False
    if default == given.value or given.name in vars(given.module) or _is_for_all(given):
        return False
    texts = {each: attempt(lambda each=each: inspect.getsource(each)) for each in kind.__mro__ if each not in _ROOTS}
    own = {each: text for each, text in texts.items() if isinstance(text, str)}
    is_of_a_base = any(re.search(rf"\b{given.name}\b", text) for each, text in own.items() if each is not kind)
    is_kept = any(_ALL_AT_ONCE.search(text) for text in own.values())
    return kind in own and not (is_of_a_base or is_kept or _names(own[kind], given.name))


def _is_for_all(given: UnreadArgument) -> bool:
    """Whether its constructor takes whatever it is given, something stands around it, or it makes a stand-in."""
    kind = type(given.module)
    has_weights = any(True for _ in given.module.parameters())
    if given.code.co_flags & inspect.CO_VARKEYWORDS or not has_weights:
        return True
    hooks = (vars(each).get("__init_subclass__") for each in kind.__mro__ if each is not object)
    return type(kind) is not type or hasattr(kind.__init__, "__wrapped__") or any(each is not None for each in hooks)


def _names(text: str, name: str) -> bool:
    """Whether a class's source reads it as an attribute or key, in any method, or says that it is not meant to be."""
    if re.search(rf"(\.{name}\b|[\"']{name}[\"'])", text):
        return True
    lines = text.splitlines()
    beside = (lines[at : at + _LINES_ON] for at, line in enumerate(lines) if re.search(rf"\b{name}\b", line))
    return any(is_said_to_be_meant(line) for each in beside for line in each)


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
    """The statements of a function's body, without what does nothing but refuse a switch that is on."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.Assert) and _is_of_switches(child.test):
            continue
        if isinstance(child, ast.If) and not child.orelse and all(isinstance(each, ast.Raise) for each in child.body):
            yield from () if _is_of_switches(child.test) else (child,)
            continue
        yield child


def _is_of_switches(test: ast.expr) -> bool:
    """Whether a condition asks for nothing but names: of another, as one of several values, there is a use."""
    allowed = (ast.BoolOp, ast.UnaryOp, ast.Name, ast.boolop, ast.unaryop, ast.expr_context)
    return all(isinstance(each, allowed) for each in ast.walk(test))
