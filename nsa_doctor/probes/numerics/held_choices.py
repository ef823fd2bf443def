"""What a part or a function holds that it may be set by: numbers, and functions that its values go through."""

import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

_DEEPEST = 2  # of containers and configurations within each other


class HeldBy:
    """What it holds itself, its classes do, and the code of it names."""

    def __init__(self, held_by: nn.Module | Callable[..., Any]) -> None:
        self._module = held_by if isinstance(held_by, nn.Module) else None
        called: Any = held_by if self._module is None else type(self._module).forward
        self._function: Any = inspect.unwrap(called)

    @property
    def has_numbers(self) -> bool:
        """Whether it holds a number that is none of counting, or a buffer, or its code does."""
        buffers = any(True for _ in self._module.buffers()) if self._module is not None else False
        return buffers or any(isinstance(each, float) for each in (*self._own(), *self._named(), *self._constants()))

    @property
    def has_switch(self) -> bool:
        """Whether it holds what says which function its values go through."""
        return any(is_switch(each) for each in (*self._own(), *self._named()))

    def _own(self) -> Iterator[Any]:
        if self._module is None:
            return
        yield from (each for name, each in vars(self._module).items() if name[:1] != "_" and name != "training")
        for kind in type(self._module).__mro__:
            if kind is nn.Module:
                break
            for name, each in vars(kind).items():
                if not name.startswith("__") and not isinstance(each, FunctionType | property | classmethod):
                    yield each.__func__ if isinstance(each, staticmethod) else each

    def _named(self) -> Iterator[Any]:
        code = getattr(self._function, "__code__", None)
        if not isinstance(code, CodeType):
            return
        for cell in self._function.__closure__ or ():
            yield from (each.cell_contents for each in (cell,) if each != type(cell)())
        for name in code.co_names:
            each = self._function.__globals__.get(name)
            if getattr(each, "__name__", "") != name and not inspect.ismodule(each):
                yield each

    def _constants(self) -> Iterator[Any]:
        yield from getattr(getattr(self._function, "__code__", None), "co_consts", ())


def is_switch(value: Any, depth: int = 0) -> bool:
    """Whether it is a function, the name of one, or holds one."""
    if isinstance(value, str) or (callable(value) and not isinstance(value, type)):
        return True
    if depth >= _DEEPEST or isinstance(value, Tensor | type):
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = vars(value).values() if not inner and hasattr(value, "__dict__") else ()
    return any(is_switch(each, depth + 1) for each in (*inner, *own))
