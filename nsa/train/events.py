"""TensorBoard events, where tensorboard is installed (the extra `train`)."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsa.train.files import writing


class Events:
    """Scalars by step in `folder`; without tensorboard, nothing."""

    def __init__(self, folder: Path, last_step: int) -> None:
        self._folder = folder
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            with writing(folder):
                self._writer = SummaryWriter(str(folder), purge_step=last_step + 1)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Names become charts, `a/b` in the group `a`."""
        if self._writer is not None:
            with writing(self._folder):
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Nothing follows."""
        if self._writer is not None:
            with writing(self._folder):
                self._writer.close()
