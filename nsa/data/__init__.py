"""Batches of tokens to train on: made ones of known entropy, local files, and FineWeb-Edu."""

from nsa.data.batch import Answers, Batch
from nsa.data.errors import DataError, LoaderStalledError
from nsa.data.loader import Loader, open_loader

__all__ = ["Answers", "Batch", "DataError", "Loader", "LoaderStalledError", "open_loader"]
