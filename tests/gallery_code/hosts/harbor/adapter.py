"""Harbor with its decoding and its training, for `nsa-doctor run --subject harbor.adapter:make`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor import Adapter, TrainingLoop

from . import factory
from .model import HarborDecoder
from .training import Batch, TrainConfig, Trainer


def make_batch(x: Tensor) -> Batch:
    """Each token is to predict the next one's embedding. The last has none, and some count not, by their values."""
    counted = (x[..., 0] < 0.5).to(x.dtype)
    counted[:, 0] = 1.0
    counted[:, -1] = 0.0
    return Batch(x, torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1), counted)


def begin(decoder: HarborDecoder) -> TrainingLoop:
    """The trainer before its first step."""
    trainer = Trainer(decoder, TrainConfig())

    def step(batches: Sequence[Tensor]) -> float:
        return trainer.train_step([make_batch(x) for x in batches])["loss"]

    def evaluate(batches: Sequence[Tensor]) -> float:
        return trainer.evaluate([make_batch(x) for x in batches])

    return TrainingLoop(step=step, evaluate=evaluate, snapshot=trainer.snapshot, restore=trainer.restore)


def make() -> Adapter:
    """The decoder, read at once, by prefill and steps, and in training."""
    return Adapter(
        make=factory.make,
        call=lambda decoder, x: decoder(x),
        seams={
            "prefill": lambda decoder, x: decoder.prefill(x),
            "step": lambda decoder, x, cache: decoder.step(x, cache),
            "loop": begin,
        },
    )
