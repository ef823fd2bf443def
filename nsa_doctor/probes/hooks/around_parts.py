"""What is to be done when a part of a module is entered and left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def around_parts(root: nn.Module, enter: Callable[[str], object], leave: Callable[[], object]) -> Iterator[None]:
    """Call `enter` with the path of each part that is called, and `leave` behind it, until the region ends."""
    handles = []
    for path, part in root.named_modules():
        handles.append(part.register_forward_pre_hook(lambda _part, _given, path=path: enter(path)))
        handles.append(part.register_forward_hook(lambda *_given: leave(), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
