"""The backward in Python behind a function's output, to which inputs it hands gradients, and its line at fault."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.internal import function_of
from nsa_doctor.probes.tensors.backward_source import read_backward

_MOST_NODES = 2000
_ALL = 3  # q, k and v at the least


@dataclass(frozen=True, kw_only=True)
class OwnBackward:
    """A backward in Python: the autograd function, its name, and to which inputs it hands gradients, in order."""

    function: Callable[..., Any]
    name: str
    order: tuple[str, ...]

    @property
    def place(self) -> Place:
        """Where it is defined."""
        code = self.function.__code__
        return Place(module_class=self.name, file=code.co_filename, line=code.co_firstlineno, function="backward")

    def place_of(self, wrong: Collection[str], right: Collection[str]) -> Place:
        """The line at fault where some gradients are wrong and others right; that of the definition failing that."""
        source = read_backward(self.function.__code__) if len(self.order) >= _ALL else None  # else whose each is
        if source is None or len(source.given) < len(self.order):
            return self.place
        numbers = dict(zip((f"d{name}" for name in self.order), source.given, strict=False))
        wrongs, rights = ([numbers[name] for name in names if name in numbers] for names in (wrong, right))
        found = source.at_fault(wrongs, rights)
        return self.place if found is None else replace(self.place, line=found.line)


def own_backward(out: Tensor, inputs: Mapping[str, Tensor]) -> OwnBackward | None:
    """The first backward in Python on the way back from an output; None where torch's own serve alone."""
    for node in _behind(out.grad_fn):
        kind = function_of(node)
        backward = None if kind is None else inspect.unwrap(getattr(kind, "backward"))  # noqa: B009
        code = getattr(backward, "__code__", None)
        if kind is None or backward is None or code is None:
            continue
        if FrameFilter().rank(code.co_filename) >= 2:
            names = {id(tensor): name for name, tensor in inputs.items()}
            following = (each for each, _ in node.next_functions if each is not None)
            order = tuple(_first_leaf(each, names) for each in following)
            return OwnBackward(function=backward, name=kind.__name__, order=order)
    return None


def _first_leaf(node: Any, names: Mapping[int, str]) -> str:
    """The first input that a node hands its gradient on to."""
    found = (names.get(id(getattr(each, "variable", None))) for each in _behind(node))
    return next((name for name in found if name is not None), "")


def _behind(node: Any) -> Iterator[Any]:
    """A node of autograd's graph and those behind it, the nearest first."""
    waiting: list[Any] = [node]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        each = waiting.pop(0)
        if each is not None and each not in seen:
            seen.add(each)
            yield each
            waiting += [following for following, _ in each.next_functions]
