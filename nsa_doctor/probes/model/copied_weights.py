"""Heads whose weights begin as a copy of an embedding's, which the code does not say is meant."""

import ast
import io
import linecache
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.method_names import text_of, tree_of
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, part_at
from nsa_doctor.probes.model.idle_initialisers import started
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments
from nsa_doctor.subject.contract import Subject

_COPYING = frozenset({"clone", "copy_", "to_copy", "contiguous", "lift_fresh"})
_OWN = 3  # the rank of the subject's own code
_FEWEST_VALUES = 8  # other than each other, of which equal ones are no accident
_MEANT = re.compile(
    r"\bun-?t(ie|y)|\bcop(y|ie[sd]|ying)\b|\bclone|initiali[sz]|\binit\b|warm|start|begin|seed|separate|independent|"
    r"decoupl|own weights|(not|n't|never|without|no longer) (be )?(tie|tied|tying|share|shared|sharing)\b",
    re.IGNORECASE,
)
_SHARED = re.compile(r"\b(weight[- ])?(tie|ties|tied|tying|share|shares|shared|sharing)\b", re.IGNORECASE)
_NOT_SHARED = re.compile(
    r"(\bnot|n't|never|without|\bno( longer)?) (be )?(tie|tied|tying|share|shared|sharing)\b|untie"
)
_NAMED_MEANT = re.compile(r"untie|copy|clone|warm|init_(from|with|head|lm|out)|init\w*_from|from_(embed|pretrained)")
_OF_SHARING = re.compile(r"tie|tying|shar", re.IGNORECASE)
_AROUND = 4  # lines before it whose comments are about it


@dataclass(frozen=True)
class CopiedWeight:
    """An embedding's weight and a layer's, that begin equal in memory of their own, and the line that copies."""

    embedding: str
    head: str
    place: Place


def copied_weights(subject: Subject) -> Iterator[CopiedWeight]:
    """Those of one shape that are trained apart, where a line of the subject's own copies one into the other."""
    if not list(_pairs(_built(subject))):
        return
    watch = _Copies(FrameFilter(subject.packages))
    with watch, started() as codes:
        module = _built(subject)
    if nn.Module.load_state_dict.__code__ in codes:
        return  # its weights come from elsewhere
    named, seen = dict(module.named_parameters()), set[str]()
    for name, other in _pairs(module):
        line = watch.line_between(memory_of(named[name]), memory_of(named[other]))
        if line is not None and not _is_meant(line) and not seen & {name, other}:
            seen |= {name, other}
            path = _holder(module, name, other)
            kind = type(part_at(module, path)).__name__
            place = Place(module=path, module_class=kind, file=line.file, line=line.line, function=line.function)
            yield CopiedWeight(name, other, place)


def _built(subject: Subject) -> nn.Module:
    seed_everything(subject.seed)
    return ask("build", lambda: subject.build(subject.seed), None)


def _pairs(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of an embedding's weight and a layer's that hold the same values, neither of which is shared itself."""
    embeddings, heads = _weights(module, nn.Embedding), _weights(module, nn.Linear)
    tied = {id(each) for each in embeddings.values()} & {id(each) for each in heads.values()}
    for name, weight in heads.items():
        for other, table in embeddings.items():
            if not tied & {id(weight), id(table)} and _are_copies(weight, table):
                yield other, name


def _weights(module: nn.Module, kind: type[nn.Module]) -> dict[str, nn.Parameter]:
    found = {f"{path}.weight".lstrip("."): part for path, part in module.named_modules() if isinstance(part, kind)}
    weights = {name: dict(part.named_parameters(recurse=False)).get("weight") for name, part in found.items()}
    return {
        name: each for name, each in weights.items() if each is not None and each.requires_grad and not is_lazy(each)
    }


def _are_copies(one: Tensor, other: Tensor) -> bool:
    """Whether they hold the same values, of which there are many, in several rows, in memory of their own."""
    if one.shape != other.shape or len(one) < 2 or memory_of(one) == memory_of(other) or one.is_meta:
        return False
    values = one.detach()
    return (
        torch.equal(values, other.detach())
        and not bool((values == values[:1]).all())
        and len(values.unique()) >= _FEWEST_VALUES
    )


def _holder(root: nn.Module, *names: str) -> str:
    """The path of the innermost module that holds both."""
    parts = [name.split(".")[:-1] for name in names]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and parts[0][shared] == parts[1][shared]:
        shared += 1
    return ".".join(parts[0][:shared])


class _Copies(DispatchWatcher):
    """Notes which memory was copied into which, and on which line of the subject's own code."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self._frames = frames
        self._lines: dict[tuple[int, int], Line] = {}
        self._held: list[Any] = []  # so that no memory is given out twice

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it copies."""
        result = func(*args, **kwargs)
        if operation_name(func) in _COPYING:
            written = tensors_in(*written_arguments(func, args, kwargs)) or tensors_in(result)
            given = [each for each in tensors_in(args, kwargs) if each is not written[0]] if written else []
            if len(given) == len(written) == 1 and given[0].numel() == written[0].numel() and given[0].ndim > 1:
                line = self._line(frame_above(1))
                if line is not None:
                    self._held += [given[0], written[0]]
                    self._lines[memory_of(given[0]), memory_of(written[0])] = line
        return result

    def line_between(self, one: int, other: int) -> Line | None:
        """The line that last copied one of two pieces of memory on the way into the other."""
        return self._way(one, other) or self._way(other, one)

    def _way(self, start: int, end: int) -> Line | None:
        waiting, seen = [(start, None)], {start}
        while waiting:
            memory, line = waiting.pop()
            if memory == end:
                return line
            steps = [(to, each) for (given, to), each in self._lines.items() if given == memory and to not in seen]
            seen |= {to for to, _ in steps}
            waiting += steps  # type: ignore[arg-type]
        return None

    def _line(self, frame: FrameType | None) -> Line | None:
        while frame is not None and self._frames.rank_of(frame.f_code) != _OWN:
            frame = frame.f_back
        if frame is None:
            return None
        return Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)


def _is_meant(line: Line) -> bool:
    """Whether names or words about the line say that two copies are wanted, or it is what is done without sharing."""
    tree = tree_of(text_of(Path(line.file)))
    around = [node for node in ast.walk(tree) if _spans(node, line.line)] if tree is not None else []
    functions = [node for node in around if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    classes = [node for node in around if isinstance(node, ast.ClassDef)]
    branches = [node for node in around if isinstance(node, ast.If)]
    if any(_NAMED_MEANT.search(each.name) for each in functions) or any(_is_without(each, line) for each in branches):
        return True
    texts = [ast.get_docstring(each) or "" for each in (*functions, *classes)]
    beside = _comments(line)
    if _SHARED.search(beside) and not _NOT_SHARED.search(beside.lower()):
        return False
    documented = [each for text in texts for each in re.split(r"(?<=[.;:])\s|\n\n", text) if _is_of_weights(each)]
    return any(_MEANT.search(each) for each in (beside, *documented))


def _is_of_weights(sentence: str) -> bool:
    return re.search(r"embed|head|weight|vocab|output|logit|unembed|tie|tying", sentence, re.IGNORECASE) is not None


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def _is_without(branch: ast.If, line: Line) -> bool:
    """Whether it is in a branch that is taken by a choice, other than the choice to share."""
    if _spans(branch.test, line.line):
        return False
    asks = _OF_SHARING.search(ast.unparse(branch.test)) is not None
    is_negated = isinstance(branch.test, ast.UnaryOp) or "not " in ast.unparse(branch.test)
    in_body = any(_spans(node, line.line) for node in branch.body)
    return not asks or is_negated == in_body


def _comments(line: Line) -> str:
    """The comments on the line and close before it."""
    texts = linecache.getlines(line.file)
    tokens = attempt(lambda: list(tokenize.generate_tokens(io.StringIO("".join(texts)).readline)))
    found = [] if isinstance(tokens, Caught) else tokens
    near = range(line.line - _AROUND, line.line + 2)
    return "\n".join(each.string for each in found if each.type == tokenize.COMMENT and each.start[0] in near)
