"""What a plain module may begin to decode with: a method that makes a first state, or a class of caches beside it."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt

Start = Callable[[nn.Module, Tensor], Any]

FIRST_STATE = re.compile(
    r"_?(get_)?(init|initial|initialize|make|create|new|empty|fresh|default|begin|start|zero|alloc|allocate|build)_\w*"
    r"(state|cache|hidden|memory|memories|kv|past)s?"
)
OF_ROWS = ("batch", "batch_size", "bsz", "bs", "b", "num_rows", "rows", "n", "max_batch_size")
OF_INPUT = ("x", "input", "inputs", "tokens", "ids", "like")
OF_LENGTH = ("max_len", "max_length", "max_seqlen", "max_seq_len", "length", "seq_len", "capacity", "max_seq_length")
ROOM = 2048
_IS_A_CACHE = re.compile(r"cache|(state|states|memory|memories|past|history|inferenceparams|kv)$", re.IGNORECASE)
_IS_NONE = re.compile(r"config|cfg|args|output|base|abstract|mixin|manager|statedict|train|optim", re.IGNORECASE)
_OF_LAYERS = re.compile(r"(n|num|number_of)?_?(hidden_)?(layers?|blocks|depth)")
OF_MODULE = ("model", "module", "net", "decoder", "lm")
_HOLDERS = ("config", "cfg", "args", "hparams", "params", "options")
_OTHER_WORDS = {
    "head_dim": ("d_head", "head_size", "dim_head"),
    "n_heads": ("num_heads", "heads", "n_head"),
    "num_heads": ("n_heads", "heads", "n_head"),
    "heads": ("n_heads", "num_heads", "n_head"),
}


def method_of(module: nn.Module, name: str) -> Any:
    """A method of that name, or what is set in its place; None for a property, which may not be asked for yet."""
    if isinstance(inspect.getattr_static(type(module), name, None), property):
        return None
    return getattr(module, name, None)


@dataclass
class TriedOnce:
    """A start that raises at once what it raised at first, where it has never made anything."""

    start: Start
    has_made: bool = False
    error: BaseException | None = None

    def __call__(self, module: nn.Module, x: Tensor) -> Any:
        """What it makes for the module and x."""
        if self.error is not None:
            raise self.error
        made = attempt(lambda: self.start(module, x))
        if not isinstance(made, Caught):
            self.has_made = True
            return made
        self.error = None if self.has_made else made.error
        raise made.error


def called_by(module: nn.Module, name: str, *given: Any) -> Any:
    """What the module's method of that name returns."""
    method: Any = getattr(module, name)
    return method(*given)


def num_required(method: Any) -> int:
    """How many arguments a method cannot do without; -1 where that is not known."""
    signature = attempt(lambda: inspect.signature(method)) if callable(method) else None
    if not isinstance(signature, inspect.Signature):
        return -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    needed = [each for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return len(needed) if all(each.kind in kinds for each in needed) else -1


def _where_it_is(make: Any, module: nn.Module) -> dict[str, Any]:
    """The module's device and dtype for what makes a state and takes them, as its caller gives them."""
    signature = attempt(lambda: inspect.signature(make))
    known = {} if isinstance(signature, Caught) else signature.parameters
    asked = [name for name in ("device", "dtype") if name in known and known[name].default is None]
    own = next(module.parameters(), None)
    return {} if own is None else {name: getattr(own, name) for name in asked}


def names_a_cache(name: str) -> bool:
    """Whether a parameter is called what may be kept from one token to the next."""
    return any(word in name.lower() for word in ("cache", "state", "past", "kv", "memory", "hidden"))


def by_making(module: nn.Module, more: Sequence[str] = ()) -> Iterator[tuple[str, Start]]:
    """Methods of the module that make a first state, for so many rows, like an input, or of nothing.

    They are named so, or one of `more`.
    """
    for name in dir(type(module)):
        if hasattr(nn.Module, name) or not (FIRST_STATE.fullmatch(name) or name in more):
            continue
        method = method_of(module, name)
        names = list(inspect.signature(method).parameters)[: num_required(method)] if num_required(method) > 0 else []
        kinds = [next((kind for kind in (OF_ROWS, OF_INPUT, OF_LENGTH) if each in kind), None) for each in names]
        if num_required(method) < 0 or None in kinds:
            continue

        def start(module: nn.Module, x: Tensor, name: str = name, kinds: list[Any] = kinds) -> Any:
            given = {OF_ROWS: len(x), OF_INPUT: x, OF_LENGTH: ROOM}
            method: Any = getattr(module, name)
            return method(*(given[kind] for kind in kinds), **_where_it_is(method, module))

        yield f"{name}({', '.join(names)})", start


def by_class(module: nn.Module, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """Classes of caches in the files of the module's classes, by themselves, and one for each layer in a list.

    What their constructors need is given by its name: a count of layers, the configuration, or what either holds.
    """
    for kind in cache_classes(module, packages):
        signature = attempt(lambda kind=kind: inspect.signature(kind))
        names = list(signature.parameters) if isinstance(signature, inspect.Signature) else []
        names = names[: num_required(kind)] if num_required(kind) > 0 else []
        known = (attempt(lambda name=name: value_for(module, name, torch.zeros(1, 1))) for name in names)
        if num_required(kind) < 0 or any(isinstance(each, Caught) for each in known):
            continue

        def start(module: nn.Module, x: Tensor, kind: type = kind, names: list[str] = names) -> Any:
            return kind(*(value_for(module, name, x) for name in names), **_where_it_is(kind, module))

        words = f"{kind.__name__}({', '.join(names)})"
        yield words, TriedOnce(start)
        if not any(_OF_LAYERS.fullmatch(name) for name in names) and attempt(lambda: num_layers(module) > 1) is True:
            yield (
                f"{words} for each layer",
                lambda module, x, start=start: [start(module, x) for _ in range(num_layers(module))],
            )


def cache_classes(module: nn.Module, packages: Sequence[str]) -> list[type]:
    """Classes that are named as caches, in the files of the module's classes."""
    files = dict.fromkeys(type(each).__module__ for each in module.modules())
    found: dict[type, None] = {}
    for name in (name for name in files if name.partition(".")[0] in packages or name == "__main__"):
        for label, kind in list(vars(sys.modules[name]).items() if name in sys.modules else ()):
            is_named = isinstance(kind, type) and _IS_A_CACHE.search(label) and not _IS_NONE.search(label)
            if is_named and may_be_made(kind, packages):
                found[kind] = None
    return list(found)


def may_be_made(kind: type, packages: Sequence[str]) -> bool:
    """Whether it is of the subject's and of objects that it may hold."""
    is_own = kind.__module__.partition(".")[0] in (*packages, "__main__")
    is_other = issubclass(kind, (nn.Module, Enum, BaseException, Tensor, torch.autograd.Function))
    return is_own and not is_other and not inspect.isabstract(kind) and (is_dataclass(kind) or "__init__" in dir(kind))


def value_for(module: nn.Module, name: str, x: Tensor) -> Any:
    """What a parameter of that name is given; raises LookupError where nothing says so."""
    if name in OF_ROWS:
        return len(x)
    if name in OF_LENGTH and not any(hasattr(each, name) for each in _holders(module)):
        return ROOM
    if name in OF_MODULE:
        return module
    if name in _HOLDERS:
        return next(getattr(module, each) for each in (name, *_HOLDERS) if hasattr(module, each))
    if name in ("device", "dtype"):
        return getattr(next(module.parameters()), name)
    if _OF_LAYERS.fullmatch(name):
        return num_layers(module)
    for holder in _holders(module):
        for each in (name, *_OTHER_WORDS.get(name, ())):
            if isinstance(value := getattr(holder, each, None), (bool, int, float, str)):
                return value
    raise LookupError(name)


def _holders(module: nn.Module) -> list[Any]:
    """The module, its configuration, and its parts, which may know a number by the name of a parameter."""
    return [module, *(getattr(module, name) for name in _HOLDERS if hasattr(module, name)), *module.modules()]


def num_layers(module: nn.Module) -> int:
    """How many layers it has: the length of its longest list of modules; raises ValueError where there is none."""
    return max(len(each) for each in module.modules() if isinstance(each, (nn.ModuleList, nn.Sequential)))
