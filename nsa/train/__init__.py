"""Training: `python -m nsa.train --config FILE`, or `train(config)`; the loop, its checkpoints and its monitors."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa.train.failures import TrainError
    from nsa.train.run import Summary, train
    from nsa.train.tracer import Tracer

# Torch is loaded with the first name, so that the command line answers to signals before.
_HOMES = {
    "Summary": "nsa.train.run",
    "Tracer": "nsa.train.tracer",
    "TrainError": "nsa.train.failures",
    "train": "nsa.train.run",
}

__all__ = ["Summary", "Tracer", "TrainError", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
