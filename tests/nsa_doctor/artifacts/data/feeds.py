"""Loaders that are healthy, each in its own way."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

S, B, V, N = 32, 4, 100, 6
CORPUS = np.random.default_rng(0).integers(0, V, 40_000)


def rows(count: int, seed: int = 0, length: int = S) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([CORPUS[at : at + length] for at in generator.integers(0, len(CORPUS) - length, count)])


def batches(seed: int = 0, count: int = 50, length: int = S) -> Iterator[np.ndarray]:
    for index in range(count):
        yield rows(B, 1000 * seed + index, length)


def pairs() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield torch.from_numpy(each[:, :-1]), torch.from_numpy(each[:, 1:])


def whole_rows() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield torch.from_numpy(each.astype(np.int32))


def small_numbers() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield {"inputs": each[:, :-1].astype(np.uint8), "targets": each[:, 1:].astype(np.uint16)}


def nested_lists() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield {"input_ids": each[:, :-1].tolist(), "labels": each[:, 1:].tolist()}


def padded_and_masked() -> Iterator[Any]:
    for index, each in enumerate(batches(length=S + 1)):
        ids, labels = each[:, :-1].copy(), each[:, 1:].copy()
        length = S // 2 + index % 5
        ids[:, length:], labels[:, length - 1 :] = 0, -100
        mask = np.zeros((B, S), np.int64)
        mask[:, :length] = 1
        yield {"input_ids": ids, "labels": labels, "attention_mask": mask}


def minus_one_ignored() -> Iterator[Any]:
    for each in batches(length=S + 1):
        targets = each[:, 1:].copy()
        targets[:, ::3] = -1
        yield each[:, :-1], targets


def answers_alone() -> Iterator[Any]:
    for each in batches(length=S + 1):
        labels = each[:, 1:].copy()
        labels[:, : S - S // 4] = -100
        yield {"input_ids": each[:, :-1], "labels": labels}


def one_epoch() -> DataLoader:
    held = torch.from_numpy(rows(5 * B + 1, length=S + 1))
    return DataLoader(TensorDataset(held[:, :-1], held[:, 1:]), batch_size=B)


def two_epochs() -> Iterator[Any]:
    for seed in range(20):
        for index in np.random.default_rng(seed).permutation(3 * B).reshape(3, B):
            each = rows(3 * B, 5, S + 1)[index]
            yield each[:, :-1], each[:, 1:]


def shuffled() -> DataLoader:
    held = torch.from_numpy(rows(40 * B, length=S + 1))
    return DataLoader(TensorDataset(held[:, :-1], held[:, 1:]), batch_size=B, shuffle=True, drop_last=True)


def random_windows() -> Iterator[Any]:
    while True:
        at = np.random.randint(0, len(CORPUS) - S - 1, B)
        each = np.stack([CORPUS[start : start + S + 1] for start in at])
        yield each[:, :-1], each[:, 1:]


def with_a_beginning() -> Iterator[Any]:
    for each in batches(length=S + 1):
        each[:, 0] = 1
        each[:, -1] = 1
        yield each[:, :-1], each[:, 1:]


def documents_masked() -> Iterator[Any]:
    for each in batches(length=S + 1):
        documents = np.broadcast_to(np.arange(S + 1) // 7, each.shape)
        labels = np.where(documents[:, 1:] != documents[:, :-1], -100, each[:, 1:])
        yield {"input_ids": each[:, :-1], "targets": labels, "document_ids": documents[:, :-1]}


class Going:
    """A loader with a position, as torchdata has it."""

    def __init__(self, seed: int = 0) -> None:
        self.at, self.seed = 0, seed

    def __iter__(self) -> "Going":
        return self

    def __next__(self) -> Any:
        self.at += 1
        each = rows(B, 77 * self.seed + self.at, S + 1)
        return each[:, :-1], each[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "generator": torch.zeros(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def splits_and_ranks(split: str = "train", rank: int = 0, world_size: int = 1, seed: int = 0) -> Iterator[Any]:
    for index in range(50):
        each = rows(B, 10_000 * (split == "heldout") + index * world_size + rank, S + 1) + 0
        if split == "heldout":
            each = (each * 7 + 3) % V
        yield each[:, :-1], each[:, 1:]


def one_buffer() -> Iterator[Any]:
    held = torch.empty(B, S + 1, dtype=torch.int64)
    for each in batches(length=S + 1):
        held.copy_(torch.from_numpy(each))
        yield held[:, :-1], held[:, 1:]


class Workers(IterableDataset):
    def __init__(self, shares: bool) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for index in range(64):
            if not self.shares or info is None or index % info.num_workers == info.id:
                row = torch.from_numpy(rows(1, index, S + 1)[0])
                yield row[:-1], row[1:]


def two_workers() -> DataLoader:
    return DataLoader(Workers(shares=True), batch_size=B, num_workers=2)


def masked_language(hidden: float = 0.8) -> Iterator[Any]:
    """Fifteen in a hundred tokens to predict, most of them hidden by a mask, some by another token, some by nothing."""
    chance = np.random.default_rng(0)
    for each in batches():
        is_asked = chance.random(each.shape) < 0.15
        how = chance.random(each.shape)
        ids = np.where(is_asked & (how < hidden), V - 1, each)
        ids = np.where(is_asked & (how > 0.9), chance.integers(0, N, each.shape), ids)
        yield {"input_ids": ids, "labels": np.where(is_asked, each, -100), "attention_mask": np.ones_like(each)}
