"""Functions, methods and classes of the subject's own that by name and arguments filter logits, or draw tokens."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.language.sampling_names import Kind, Signature, kinds_of, numbers_of, signature_of
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.model.outward_calls import reaches_out, source_of, sources_within_call

_OWN = 3  # the rank of the subject's own code
_MOST = 40
_CALLED = ("__call__", "forward")
_METHOD = (FunctionType, staticmethod, classmethod)


@dataclass(frozen=True)
class Sampling:
    """One of them: `ask` calls it on logits or probabilities, earlier ids, and numbers by their kind.

    `path` and `holder` are the module that it is a method of, and its class, if any; `text` is its source.
    """

    name: str
    path: str
    holder: str
    code: CodeType
    text: str
    signature: Signature
    ask: Callable[[Tensor, Tensor, dict[Kind, float]], Any]


def sampling_functions(root: nn.Module, packages: tuple[str, ...]) -> list[Sampling]:
    """Those of the module and its parts, then those of the files that are loaded from its packages, each once."""
    frames, found = FrameFilter(packages), dict[CodeType, Sampling]()
    for each in (*_of_parts(root, frames), *_of_files(root, packages, frames)):
        found.setdefault(each.code, each)
    return list(found.values())[:_MOST]


def _of_parts(root: nn.Module, frames: FrameFilter) -> Iterator[Sampling]:
    seen: set[type] = set()
    for path, part in root.named_modules():
        kind = type(part)
        if kind in seen or kind.__module__.startswith("torch."):
            continue
        seen.add(kind)
        for name in dir(kind):
            kinds = None if hasattr(nn.Module, name) else kinds_of(name)
            if kinds is not None and isinstance(inspect.getattr_static(kind, name), _METHOD):
                yield from _sampling(getattr(part, name), name, kinds, frames, path, kind.__name__)


def _of_files(root: nn.Module, packages: tuple[str, ...], frames: FrameFilter) -> Iterator[Sampling]:
    parts = {type(part).__module__.partition(".")[0] for part in root.modules()} - {"torch"}
    for module_name, file in sorted(loaded_files((*packages, *parts)).items()):
        if frames.rank(file) != _OWN:
            continue
        for name, value in sorted(vars(sys.modules[module_name]).copy().items()):
            kinds = kinds_of(name) if inspect.isfunction(value) or inspect.isclass(value) else None
            if kinds is None:
                continue
            if inspect.isclass(value):
                yield from _of_class(value, kinds, frames)
            else:
                yield from _sampling(value, name, kinds, frames)


def _of_class(kind: type, kinds: set[Kind], frames: FrameFilter) -> Iterator[Sampling]:
    """A class that is made with numbers, and whose instances are called on logits."""
    own = [name for name in _CALLED if inspect.isfunction(vars(kind).get(name))]
    read = attempt(lambda: list(inspect.signature(kind).parameters.values()))
    if not own or not kinds or isinstance(read, Caught):
        return
    numbers = numbers_of(read, kinds)
    known = {each.name for each in numbers.values()}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(each.default is each.empty and each.name not in known and each.kind not in variable for each in read):
        return
    function = vars(kind)[own[0]]
    is_learned = issubclass(kind, nn.Module) and set(numbers) == {"temperature"}  # it may be a factor by design
    if numbers and not is_learned and not reaches_out(source_of(kind)):
        yield from _sampling(function, kind.__name__, kinds, frames, made=(kind, numbers))


def _sampling(
    function: Any,
    name: str,
    kinds: set[Kind],
    frames: FrameFilter,
    path: str = "",
    holder: str = "",
    made: tuple[type, dict[Kind, inspect.Parameter]] | None = None,
) -> Iterator[Sampling]:
    plain: Any = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else None
    code = getattr(plain, "__code__", None)
    if not isinstance(code, CodeType) or frames.rank_of(code) != _OWN or inspect.iscoroutinefunction(plain):
        return
    signature = signature_of(MethodType(function, made[0]) if made else function, kinds, made[1] if made else None)
    text = source_of(plain)
    if signature is not None and made is None:
        signature = replace(signature, numbers={k: v for k, v in signature.numbers.items() if _is_read(v.name, text)})
    if signature is None or not signature.numbers or not text or any(map(reaches_out, sources_within_call(plain))):
        return
    yield Sampling(name, path, holder, code, text, signature, _asking(function, signature, made[0] if made else None))


def _is_read(name: str, text: str) -> bool:
    """Whether a function's code does anything with an argument."""
    tree = attempt(lambda: ast.parse(text))
    if isinstance(tree, Caught):
        return False
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(tree)
    )


def _asking(
    function: Callable[..., Any], signature: Signature, kind: type | None
) -> Callable[[Tensor, Tensor, dict[Kind, float]], Any]:
    def ask(scores: Tensor, ids: Tensor, numbers: dict[Kind, float]) -> Any:
        values = {signature.numbers[each].name: value for each, value in {**signature.idle, **numbers}.items()}
        given: dict[str, Any] = {signature.scores: scores}
        if signature.ids:
            given[signature.ids] = ids.tolist() if signature.takes_list else ids
        if signature.times:
            given[signature.times] = 1
        if signature.generator:
            given[signature.generator] = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
        if kind is None:
            return function(**given, **values)
        return getattr(kind(**values), function.__name__)(**given)

    return ask
