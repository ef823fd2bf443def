"""Training states on disk."""

import os
from pathlib import Path

import torch

from .training import Trainer


def save(trainer: Trainer, folder: Path, keep: int = 2) -> Path:
    """Write the trainer's state; a file is there whole or not at all, and the newest `keep` stay."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"step_{trainer.done:06d}.pt"
    partial = file.with_suffix(".partial")
    torch.save(trainer.snapshot(), partial)
    os.replace(partial, file)
    for old in checkpoints(folder)[:-keep]:
        old.unlink()
    return file


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the oldest first."""
    return sorted(folder.glob("step_*.pt"))


def resume(trainer: Trainer, folder: Path) -> bool:
    """Go on from the newest checkpoint; False where there is none."""
    found = checkpoints(folder)
    if found:
        trainer.restore(torch.load(found[-1], weights_only=True))
    return bool(found)
