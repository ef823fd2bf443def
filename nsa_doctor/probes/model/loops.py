"""A training loop that keeps something of its own, an optimizer or a count, from one call to the next."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any


@contextmanager
def preserved_loop(step: Callable[..., Any] | None) -> Iterator[None]:
    """A region after which the loop keeps what it kept before: its attributes, or the variables it closes over.

    An optimizer that it makes for the first module it sees would hold no parameter of the next.
    """
    bare = inspect.unwrap(step) if step is not None else None
    owner = getattr(bare, "__self__", None if inspect.isfunction(bare) else bare)
    cells = [cell for cell in getattr(bare, "__closure__", None) or () if _is_filled(cell)]
    kept = [(cell, cell.cell_contents, _copied(cell.cell_contents)) for cell in cells]
    held = getattr(owner, "__dict__", None)
    attributes = {name: (value, _copied(value)) for name, value in held.items()} if isinstance(held, dict) else {}
    try:
        yield
    finally:
        for cell, value, copied in kept:
            cell.cell_contents = _restored(value, copied)
        if isinstance(held, dict):
            restored = {name: _restored(value, copied) for name, (value, copied) in attributes.items()}
            held.clear()
            held.update(restored)


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _copied(value: Any) -> Any:
    return value.copy() if type(value) in (dict, list, set) else None


def _restored(value: Any, copied: Any) -> Any:
    """The very same object, holding what it held."""
    if type(value) is list:
        value[:] = copied
    elif copied is not None:
        value.clear()
        value.update(copied)
    return value
