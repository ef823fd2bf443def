"""Configurations and files for the tests of data."""

import json
from pathlib import Path
from typing import Any

import torch

from nsa.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nsa.data import Batch

MODEL: dict[str, Any] = {"dim": 8, "n_heads": 2, "n_kv_groups": 1, "d_k": 4, "d_v": 4}


def configured(
    dataset: str, *, seq_len: int = 16, rows: int = 4, seed: int = 7, vocab: int = 256, **data: Any
) -> RunConfig:
    """A run on `dataset`, with further values of the section `data`."""
    return RunConfig(
        model=ModelConfig(**MODEL, vocab_size=vocab),
        data=DataConfig(dataset=dataset, **data),
        train=TrainConfig(seq_len=seq_len, batch_size=rows, seed=seed),
    )


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def texts_of(count: int, start: int = 0) -> list[str]:
    """Texts of 5 to 47 bytes, all different."""
    return [f"{number:04d}:" + "abcdefg" * (number * number % 7) for number in range(start, start + count)]


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches agree in all but how long they took."""
    return (
        torch.equal(one.tokens, other.tokens)
        and torch.equal(one.documents, other.documents)
        and (one.step, one.sources, one.epoch) == (other.step, other.sources, other.epoch)
    )
