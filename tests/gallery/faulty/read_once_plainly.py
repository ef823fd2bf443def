"""A variable that is read on import, as the text beside it says: READ_ONCE_PLAINLY."""

import os

from torch import Tensor

from .host import hosting

_TWICE = os.environ.get("READ_ONCE_PLAINLY") == "1"


def _maybe_twice(x: Tensor) -> Tensor:
    return x * 2 if _TWICE else x


make = hosting(_maybe_twice)
