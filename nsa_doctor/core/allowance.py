"""Seconds that may be spent on something in all, however often it comes."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Allowance:
    """`seconds` are what is left; what a block under `spending` takes is taken off."""

    seconds: float = math.inf

    @contextmanager
    def spending(self, at_most: float) -> Iterator[float]:
        """Gives the moment, of `time.monotonic`, by which the block should end: it may take no more than is left."""
        begin = time.monotonic()
        try:
            yield begin + max(0.0, min(at_most, self.seconds))
        finally:
            self.seconds = max(0.0, self.seconds - (time.monotonic() - begin))
