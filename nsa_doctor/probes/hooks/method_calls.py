"""Where the subject's own code calls a method of torch's, such as `Module.train` or `Tensor.backward`."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places


@contextmanager
def calls_of(owner: type | ModuleType, method: str, places: Places) -> Iterator[list[Place]]:
    """The places that call this method of the class while the region lasts, but not where it calls itself in turn.

    Or that function of a module, where they ask the module for it.
    """
    original = getattr(owner, method)
    found: list[Place] = []
    depth = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth:
            found.append(places.here()[0])
        depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            depth -= 1

    setattr(owner, method, counted)
    try:
        yield found
    finally:
        setattr(owner, method, original)
