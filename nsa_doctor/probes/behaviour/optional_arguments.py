"""Arguments that a forward may be given beside its input: which values it takes, and what a call with one does."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule

_OF_ANOTHER_KIND = frozenset(  # words of what holds for a call, and of what others ask of
    {
        *("mask", "masks", "cache", "caches", "past", "state", "states", "mem", "mems", "memory", "hidden", "loss"),
        *("target", "targets", "weight", "weights", "bias", "position", "positions", "pos", "index", "indices", "idx"),
        *("offset", "offsets", "start", "end", "cu", "rope", "rotary", "freqs", "order", "group", "groups", "segment"),
        *("segments", "batch", "importance", "graph", "edge", "edges", "ptr", "return", "output", "outputs", "use"),
        *("deterministic", "training", "inplace", "generator", "seed", "rng", "layers", "heads", "perm", "sort"),
    }
)
_OF_ROWS = frozenset(  # words of what each row of a batch has one of
    {
        *("t", "time", "times", "timestep", "timesteps", "step", "steps", "sigma", "sigmas", "noise", "level"),
        *("label", "labels", "y", "class", "classes", "cls", "cond", "condition", "conditioning", "guidance"),
        *("style", "speaker", "length", "lengths", "lens", "domain", "task", "language", "lang", "temperature"),
    }
)
_OF_VECTORS = frozenset(  # words of what each row of a batch has a vector, or several, of
    {
        *("c", "z", "cond", "condition", "conditioning", "emb", "embed", "embedding", "embeddings", "vec", "vector"),
        *("context", "ctx", "style", "speaker", "spk", "pooled", "global", "text", "prompt", "latent", "y", "class"),
    }
)
_OF_ONE_ROW = frozenset({"cond", "condition", "conditioning"})
_OF_THE_INPUT = frozenset({"input", "inputs", "prepend", "hidden"})
_TOKENS = 8  # a number of tokens
_VECTORS = 5  # of each row
_MOST_WIDTHS = 6
_ROUNDINGS = 1e5
_MORE = 2  # rows, at which an argument for each row is tried again: three may be heads or channels too


@dataclass(frozen=True)
class Given:
    """An argument and a value for it, of one number or vector for each row if it `is_by_row`, else of one number."""

    name: str
    value: Any
    is_by_row: bool


def accepted(sp: BuiltModule, x: Tensor) -> Iterator[Given]:
    """Of each optional argument the first value that it takes and that changes the answer for x [B, S, ...]."""
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    if isinstance(parameters, Caught):
        return
    plain = sp(x)
    for name, parameter in parameters.items():
        is_number, words = type(parameter.default) in (int, float), words_of(name)
        if (parameter.default is None or is_number) and not _OF_ANOTHER_KIND & words:
            made = [*of_rows(words), *(() if is_number else of_vectors(sp, words))]
            values = [(make, Given(name, make(x), is_by_row=True)) for make in made]
            values += [] if is_number else [(_unmade, Given(name, _TOKENS, is_by_row=False))]
            found = next(((make, each) for make, each in values if _is_taken(sp, x, each, plain)), None)
            if found is not None and (not found[1].is_by_row or _is_by_row(sp, x, *found)):
                yield found[1]


Made = Callable[[Tensor], Tensor]


def words_of(name: str) -> set[str]:
    """The words of an argument's name."""
    return set(name.lower().split("_"))


def of_rows(words: set[str]) -> list[Made]:
    """What makes a number for each row of an argument of that name: fractions, and whole ones, also of two alone."""
    return [fractions, _labels(3), _labels(2, first=0)] if _OF_ROWS & words else []


def of_vectors(sp: BuiltModule, words: set[str]) -> list[Made]:
    """What makes a vector, or several, for each row of an argument of that name, of widths that linear layers take."""
    if not _OF_VECTORS & words or _OF_THE_INPUT & words:
        return []
    widths = [each.in_features for each in sp.module.modules() if isinstance(each, nn.Linear)]
    widths += [each.embedding_dim for each in sp.module.modules() if isinstance(each, nn.Embedding)]
    known = list(dict.fromkeys([*([sp.subject.width] if sp.subject.input == "embeddings" else []), *widths]))
    return [_vectors(sp, shape) for width in known[:_MOST_WIDTHS] for shape in ((width,), (_VECTORS, width))]


def fractions(x: Tensor) -> Tensor:
    """A number between zero and one for each row."""
    rows = len(x)
    return (torch.arange(1, rows + 1, device=x.device) / (rows + 1)).to(_dtype_for(x))


def _labels(count: int, first: int = 1) -> Made:
    return lambda x: first + torch.arange(len(x), device=x.device) % count


def _vectors(sp: BuiltModule, shape: tuple[int, ...]) -> Made:
    def made(x: Tensor) -> Tensor:
        drawn = torch.randn(len(x), *shape, generator=torch.Generator().manual_seed(sp.subject.seed))
        return drawn.to(x.device, x.dtype if x.is_floating_point() else getattr(torch, sp.dtype))

    return made


def _unmade(x: Tensor) -> Tensor:
    raise TypeError(f"there is no number for each of {len(x)} rows")


def _dtype_for(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


def _is_by_row(sp: BuiltModule, x: Tensor, make: Made, given: Given) -> bool:
    """Whether more rows take as many more, and no other number of vectors: all rows may share several of these.

    A condition is each row's own, which an average may take any number of.
    """
    longer = torch.cat((x, sp.input(x.shape[1], _MORE)))
    of_longer = make(longer)
    with giving(sp.module, {given.name: of_longer}):
        is_taken = isinstance(attempt(lambda: sp(longer)), Tensor)
        is_own = of_longer.ndim == 1 or (of_longer.ndim == 2 and bool(_OF_ONE_ROW & words_of(given.name)))
        return is_taken and (is_own or isinstance(attempt(lambda: sp(x)), Caught))


def _is_taken(sp: BuiltModule, x: Tensor, given: Given, plain: Tensor) -> bool:
    with giving(sp.module, {given.name: given.value}):
        answer = attempt(lambda: sp(x))
    return isinstance(answer, Tensor) and answer.shape == plain.shape and is_another(answer, plain)


def is_another(answer: Tensor, other: Tensor) -> bool:
    """Whether two answers differ by more than rounding."""
    size = max(float(answer.abs().max()), float(other.abs().max()))
    return not float((answer - other).abs().max()) <= _ROUNDINGS * torch.finfo(answer.dtype).eps * size


@contextmanager
def giving(module: nn.Module, arguments: Mapping[str, Any]) -> Iterator[None]:
    """A region in which calls of the module have these arguments beside their own."""
    handle = module.register_forward_pre_hook(
        lambda _module, args, kwargs: (args, {**arguments, **kwargs}), with_kwargs=True
    )
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def giving_instead(module: nn.Module, arguments: Mapping[str, Any]) -> Iterator[None]:
    """The same, in the place of what a caller gives for them, by position or by name."""
    signature = inspect.signature(module.forward)

    def given(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        bound = signature.bind_partial(*args, **kwargs)
        bound.arguments.update(arguments)
        return bound.args, bound.kwargs

    handle = module.register_forward_pre_hook(given, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
