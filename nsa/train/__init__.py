"""Training: `python -m nsa.train --config FILE`, or `train(config)`; the loop, its checkpoints and its monitors."""

from nsa.train.failures import TrainError
from nsa.train.run import Summary, train
from nsa.train.tracer import Tracer

__all__ = ["Summary", "Tracer", "TrainError", "train"]
