"""The learning rate of every step: linear warm-up, then a cosine or a constant."""

import math

from nsa.config import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """The rate of step 1, 2, … `train.steps`.

    Warm-up takes equal steps up from zero, never at zero, to the peak `lr` at step `warmup_steps`; without one the
    peak is at step 1. A cosine reaches `lr_floor` at the last step. One that outlasts the run never gets there.
    """
    if step < train.warmup_steps:
        return train.lr * step / train.warmup_steps
    peak_step = max(train.warmup_steps, 1)
    if train.lr_schedule == "constant" or step <= peak_step:
        return train.lr
    progress = min((step - peak_step) / (train.steps - peak_step), 1.0)
    return train.lr_floor + (train.lr - train.lr_floor) * (1 + math.cos(math.pi * progress)) / 2
