"""Documents to rows of equal length, nothing lost: the next row goes on where this one ends.

A row that ends inside a document hands its last token on as the next row's first, so each token but a document's first
is a target exactly once. Rows hold as many documents as fit; a document longer than a row goes on in the next.
"""

from collections.abc import Callable, Iterator

import numpy as np
from pydantic import Field

from nsa.config import Count
from nsa.data.batch import Row, Words
from nsa.data.documents import Document
from nsa.data.errors import DataError
from nsa.data.order import Order, Placed, Position
from nsa.data.progress import Progress

Encode = Callable[[list[Document]], list[Words]]

_CHUNK, _CHUNK_CHARACTERS = 32, 1 << 17


class RowPosition(Position):
    """Where the next row begins: at token `offset` of the next document."""

    offset: Count = Field(default=0, description="tokens of the document that rows before it hold")


def packed_rows(
    order: Order, encode: Encode, length: int, start: RowPosition, progress: Progress
) -> Iterator[tuple[Row, RowPosition]]:
    """(row of `length` tokens, position of the row after it), without end."""
    offset, missing = start.offset, length
    stretches: list[tuple[Placed, Words]] = []  # what the row under way holds
    for placed, ids in _tokenized(order, encode, start, progress):
        if 0 < ids.size <= offset:
            raise DataError(
                f"{placed.document.name}: has {ids.size} tokens, and the run stood at token {offset} of it: "
                "data or tokenizer are not those of the run"
            )
        while offset < ids.size:
            taken = ids[offset : offset + missing]
            stretches.append((placed, taken))
            offset, missing = offset + taken.size, missing - taken.size
            if missing == 0:
                is_inside = offset < ids.size
                offset -= is_inside
                yield _row(stretches), _place(placed.at, offset) if is_inside else _place(placed.after, 0)
                stretches, missing = [], length
        offset = 0


def _tokenized(order: Order, encode: Encode, start: RowPosition, progress: Progress) -> Iterator[tuple[Placed, Words]]:
    fertile = start.epoch  # the last that gave a token
    for chunk in _chunks(order.documents(Position(**start.model_dump(exclude={"offset"})))):
        more = f" and {len(chunk) - 1} after it" if len(chunk) > 1 else ""
        progress.at("tokenize", chunk[0].document.name + more)
        for placed, ids in zip(chunk, encode([each.document for each in chunk]), strict=True):
            progress.at("pack", placed.shard)
            fertile = placed.at.epoch if ids.size else fertile
            if placed.at.epoch > fertile + 1:
                raise DataError(f"{order.name}: the tokenizer makes no token of any document")
            yield placed, ids


def _chunks(documents: Iterator[Placed]) -> Iterator[list[Placed]]:
    """Documents in lists that a tokenizer spreads over the cores; those before a failure come before it."""
    chunk: list[Placed] = []
    try:
        for placed in documents:
            chunk.append(placed)
            if len(chunk) == _CHUNK or sum(len(each.document.text) for each in chunk) >= _CHUNK_CHARACTERS:
                yield chunk
                chunk = []
    except DataError:
        if chunk:
            yield chunk
        raise


def _row(stretches: list[tuple[Placed, Words]]) -> Row:
    documents = [np.full(ids.size, index, np.int32) for index, (_, ids) in enumerate(stretches)]
    return Row(
        tokens=np.concatenate([ids for _, ids in stretches]),
        documents=np.concatenate(documents),
        sources=tuple(dict.fromkeys(placed.shard for placed, _ in stretches)),
        epoch=stretches[-1][0].at.epoch,
    )


def _place(position: Position, offset: int) -> RowPosition:
    return RowPosition(**position.model_dump(), offset=offset)
