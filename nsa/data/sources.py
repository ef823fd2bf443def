"""What `data.dataset` names, as a source of rows with a position: made ones, and documents packed to rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from nsa.config import RunConfig
from nsa.data.batch import Row
from nsa.data.documents import Dataset, open_dataset
from nsa.data.errors import DataError
from nsa.data.needle import NEEDLE_VOCAB_SIZE, SHORTEST_NEEDLE_ROW, needle_row
from nsa.data.order import Order
from nsa.data.packing import RowPosition, packed_rows
from nsa.data.progress import Progress
from nsa.data.synthetic import VOCAB_SIZE, entropy, oracle_loss, synthetic_row
from nsa.data.tokenizer import Tokenizer, checked_ids, open_tokenizer
from nsa.strict import Strict

Split = Literal["train", "heldout"]
Numbers = Mapping[str, int]
Identity = dict[str, str | int]


@dataclass(frozen=True)
class Source:
    """Rows of one split of one dataset.

    identity: what the order of rows depends on. start: the position of the first row. check: raises ConfigError for a
    position that cannot be. rows: (row, position of the row after it) from a position on, without end.
    """

    description: str
    vocab_size: int
    identity: Identity
    start: dict[str, int]
    check: Callable[[Numbers], object]
    rows: Callable[[Numbers, Progress], Iterator[tuple[Row, dict[str, int]]]]
    entropy: float | None = None
    oracle_loss: Callable[[Tensor], float] | None = None


class _RowNumber(Strict):
    row: Annotated[int, Field(ge=0, lt=2**62, description="rows before it")] = 0


def open_source(config: RunConfig, split: Split) -> Source:
    """The source that `config.data` names; raises DataError for what can be known before reading."""
    train = config.train
    identity: Identity = {
        "data.dataset": config.data.kind,
        "split": split,
        "train.seq_len": train.seq_len,
        "train.seed": train.seed,
    }
    match config.data.kind:
        case "synthetic":
            make = partial(synthetic_row, train.seed, split, length=train.seq_len + 1)
            made = _made_source("synthetic: a walk round 16 places that remember", VOCAB_SIZE, identity, make)
            return replace(made, entropy=entropy(train.seq_len), oracle_loss=oracle_loss)
        case "needle" if train.seq_len < SHORTEST_NEEDLE_ROW:
            raise DataError(f"train.seq_len must be at least {SHORTEST_NEEDLE_ROW} for needle, got {train.seq_len}")
        case "needle":
            make = partial(needle_row, train.seed, split, length=train.seq_len + 1)
            return _made_source("needle: recall of 16 values by their keys", NEEDLE_VOCAB_SIZE, identity, make)
    return _document_source(config, split, identity)


def _made_source(description: str, vocab_size: int, identity: Identity, make: Callable[[int], Row]) -> Source:
    def rows(position: Numbers, progress: Progress) -> Iterator[tuple[Row, dict[str, int]]]:
        progress.at("make", description)
        for index in count(position["row"]):
            yield make(index), {"row": index + 1}
            progress.done()

    return Source(description, vocab_size, identity, {"row": 0}, lambda position: _RowNumber(**position), rows)


def _document_source(config: RunConfig, split: Split, identity: Identity) -> Source:
    data = config.data
    tokenizer, dataset = open_tokenizer(data), open_dataset(data)
    identity = identity | {
        "the files' names and sizes": dataset.fingerprint,
        "data.tokenizer": tokenizer.fingerprint,
        "data.end_token": data.end_token or "",
        "data.text_field": data.text_field or "text",
        "data.text_by": data.text_by or "paragraph",
        "data.subset": data.subset or "",
        "data.shuffle_buffer": data.shuffle_buffer,
        "data.heldout_every": data.heldout_every,
    }
    return Source(
        f"{dataset.name}, tokenizer {tokenizer.name}",
        tokenizer.vocab_size,
        identity,
        RowPosition().model_dump(),
        lambda position: RowPosition(**position),
        partial(_document_rows, config, split, dataset, tokenizer),
    )


def _document_rows(
    config: RunConfig, split: Split, dataset: Dataset, tokenizer: Tokenizer, position: Numbers, progress: Progress
) -> Iterator[tuple[Row, dict[str, int]]]:
    progress.at("open", f"tokenizer {tokenizer.name}")
    encode = tokenizer.load()
    progress.at("open", dataset.name)
    order = Order(
        name=dataset.name,
        shards=dataset.shards(),
        is_heldout=split == "heldout",
        heldout_every=config.data.heldout_every,
        block_size=max(1, config.data.shuffle_buffer),
        seed=config.train.seed,
        progress=progress,
    )
    ids_of = partial(checked_ids, encode, vocab_size=config.model.vocab_size)
    for row, after in packed_rows(order, ids_of, config.train.seq_len + 1, RowPosition(**position), progress):
        yield row, after.model_dump()
