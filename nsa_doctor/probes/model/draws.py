"""Which generators of random numbers a call draws from."""

import random
import sys
from typing import Any

import torch


class Generators:
    """The states of torch's, Python's and NumPy's global generators when this was made."""

    def __init__(self) -> None:
        self._before = _states()

    def drawn_from(self) -> tuple[str, ...]:
        """The names of those that have moved since."""
        now = _states()
        return tuple(name for name, state in self._before.items() if name in now and not _is_same(state, now[name]))


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch's": torch.default_generator.get_state(), "Python's": random.getstate()}
    if torch.cuda.is_initialized():
        states["CUDA's"] = torch.cat(torch.cuda.get_rng_state_all())
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state(legacy=False)
        states["NumPy's"] = (state["state"]["pos"], state["has_gauss"], state["state"]["key"].tobytes())
    return states


def _is_same(before: Any, now: Any) -> bool:
    return torch.equal(before, now) if isinstance(before, torch.Tensor) else bool(before == now)
