"""Rows of tokens and batches of them, as a loader gives them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

Words = Int64[np.ndarray, " _"]  # token ids of a stretch of text, of any length


@dataclass(frozen=True, eq=False)
class Question:
    """One recall of a needle: `column` of the targets holds the answer, which last stood `distance` tokens before."""

    column: int
    depth: float
    distance: int


@dataclass(frozen=True, eq=False)
class Row:
    """seq_len + 1 tokens; documents count from 0 in each row."""

    tokens: Words
    documents: Int32[np.ndarray, " _"]
    sources: tuple[str, ...]
    epoch: int = 0
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, eq=False)
class Answers:
    """Which targets answer a question about a needle; a row with fewer questions than Q is filled with column -1.

    columns: `targets[b, columns[b]]` are the answers, `logits[b, columns[b]]` predict them (targets = tokens[:, 1:]).
    depths: where the needle lies; 0 is the start of the row, 1 just before the question.
    distances: tokens from where the answer last stood, in the needle or behind a question, to the question.
    """

    columns: Int64[Tensor, "B Q"]
    depths: Float32[Tensor, "B Q"]
    distances: Int64[Tensor, "B Q"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one rank: inputs are tokens[:, :-1], targets tokens[:, 1:].

    documents: the document a token belongs to, counted from 0 in each row; a target that begins one is not predicted.
    step: how many batches the loader has given before, over all its lives.
    fetch_seconds: how long the caller waited.
    sources: the files or shards the rows come from, each once.
    epoch: how often all data had been read before the last row of all ranks.
    """

    tokens: Int64[Tensor, "B longer"]
    documents: Int32[Tensor, "B longer"]
    step: int
    fetch_seconds: float
    sources: tuple[str, ...]
    epoch: int = 0
    answers: Answers | None = None


def stacked(rows: list[Row], step: int, epoch: int) -> Batch:
    """A batch of rows, its `fetch_seconds` yet to be known."""
    return Batch(
        tokens=torch.from_numpy(np.stack([row.tokens for row in rows])),
        documents=torch.from_numpy(np.stack([row.documents for row in rows])),
        step=step,
        fetch_seconds=0.0,
        sources=tuple(dict.fromkeys(source for row in rows for source in row.sources)),
        epoch=epoch,
        answers=_answers(rows) if any(row.questions for row in rows) else None,
    )


def _answers(rows: list[Row]) -> Answers:
    most = max(len(row.questions) for row in rows)
    filled = [[*row.questions, *[Question(-1, 0.0, 0)] * (most - len(row.questions))] for row in rows]
    return Answers(
        columns=torch.tensor([[each.column for each in row] for row in filled]),
        depths=torch.tensor([[each.depth for each in row] for row in filled]),
        distances=torch.tensor([[each.distance for each in row] for row in filled]),
    )
