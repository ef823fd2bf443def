"""Which attribute of which module holds a tensor that no parameter list shows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.probes.internal import BUFFERS, registered, registries

_DEEPEST = 6
_MOST_ITEMS = 4096


@dataclass(frozen=True)
class Holder:
    """A tensor, the module whose attribute leads to it, and the way there: `blocks[0].weight`."""

    tensor: Tensor
    module: str
    module_class: str
    attribute: str
    way: str


def holders(root: nn.Module) -> Iterator[Holder]:
    """Every tensor that wants a gradient and hangs on a module otherwise than as a parameter."""
    yield from (holder for holder in tensors_held(root) if holder.tensor.requires_grad)


def tensors_held(root: nn.Module) -> Iterator[Holder]:
    """Every tensor that hangs on a module otherwise than as a parameter."""
    seen = {id(module) for module in root.modules()}
    for path, module in root.named_modules():
        apart = registries(module) - {BUFFERS}
        for attribute, value in list(vars(module).items()):
            if attribute in apart:
                continue
            named = value.items() if attribute == BUFFERS else [(attribute, value)]
            for name, item in named:
                for way, tensor in _tensors(item, name, _DEEPEST, seen):
                    yield Holder(tensor, path, type(module).__name__, name, way)


def attribute_tensors(root: nn.Module) -> Iterator[Holder]:
    """Every tensor that is a plain attribute of a module: neither parameter nor buffer."""
    for path, module in root.named_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                yield Holder(value, path, type(module).__name__, name, name)


def roots_of(tensor: Tensor) -> list[Tensor]:
    """The tensor itself when it is a leaf; else the leaves it was computed from."""
    if tensor.grad_fn is None:
        return [tensor]
    waiting, seen, found = [tensor.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            waiting += [following for following, _ in node.next_functions]
    return found


def _tensors(value: Any, way: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield way, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, (str, bytes, int, float, complex, type)) or value is None:
        return
    seen.add(id(value))
    for step, part in _parts(value):
        yield from _tensors(part, f"{way}{step}", depth - 1, seen)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in list(value.items())[:_MOST_ITEMS]]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", part) for index, part in enumerate(list(value)[:_MOST_ITEMS])]
    if isinstance(value, nn.Module):
        held, apart = {**registered(value), **vars(value)}, registries(value)
        return [(f".{name}", part) for name, part in held.items() if name not in apart]
    cells, code = getattr(value, "__closure__", None), getattr(value, "__code__", None)
    if isinstance(cells, tuple) and isinstance(code, CodeType):
        names = code.co_freevars
        return [(f".{name}", _content(cell)) for name, cell in zip(names, cells, strict=True)]
    bound = getattr(value, "__self__", None)
    if bound is not None and not isinstance(bound, type):
        return [("", bound)]
    state = getattr(value, "__dict__", None)
    return [(f".{name}", part) for name, part in state.items()] if isinstance(state, dict) else []


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None
