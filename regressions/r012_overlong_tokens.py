"""r012 overlong-tokens

Reported: 001, of m7c_125m_fast_log: gpt2 on FineWeb-Edu, rows of 1,024 tokens, batch 1.
Symptom: the tokenizer warns of sequences that are too long; training attempts fail with those warnings.
Cause: reported as missing truncation and validation, and mended by truncation. Established: a tokenizer says so of any
    document longer than the model it was published for, whatever becomes of its ids, so the warning alone is no fault;
    one is made where the ids go on as they are. Truncation ends the warning and throws the rest of each document away.
    Here documents are packed: every row has seq_len + 1 tokens, no token of a document is lost (asserted),
    and an id beyond the vocabulary is refused with the document's name.
Check: DAT102 on rows that are too long, DAT101 on ids that the model has no place for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from nsa.config import RunConfig, load_config, with_changes
from nsa.data import DataError, open_loader
from nsa.data.batch import Row
from nsa.data.packing import _tokenized
from nsa.data.tokenizer import Tokenizer
from nsa_doctor.cases.case import found, raised
from nsa_doctor.cases.record import Case, Plant

from .streams import OPENED, streamed

_LENGTH = 1024
_TOKENIZER = "nsa.data.sources.open_tokenizer"
_BYTES = ("data.tokenizer=byte", "model.vocab_size=256", "data.heldout_every=1000000")
_HERE = Path(__file__).name


def configuration() -> RunConfig:
    """That of the report, with bytes, of which every document is."""
    return with_changes(load_config("m7c_125m_fast_log"), _BYTES)


def long_text() -> str:
    """One document, five times too long, of letters in no order."""
    return "".join(chr(97 + each) for each in np.random.default_rng(0).integers(0, 26, 5 * _LENGTH))


def documents() -> list[str]:
    return [long_text(), "a short one"]


def reproduce() -> None:
    with patch(OPENED, streamed(documents)), open_loader(configuration()) as loader:
        rows = [next(loader).tokens[0].tolist() for _ in range(4)]
    assert {len(row) for row in rows} == {_LENGTH + 1}, f"rows have {[len(row) for row in rows]} tokens"
    text = "".join(chr(each) for row in rows for each in row[:-1])
    assert long_text().startswith(text), "tokens of a long document are lost between its rows"
    with (
        patch(OPENED, streamed(documents)),
        patch(_TOKENIZER, of_another_model),
        open_loader(configuration()) as loader,
    ):
        error = raised(DataError, lambda: next(loader))
    assert "has id 50256, and model.vocab_size is 256" in str(error), f"an id of another vocabulary gives {error}"


def of_another_model(data: Any) -> Any:
    """Ids of gpt2 where the model has 256; it says that it has as many."""

    def encode(texts: list[str]) -> list[Any]:
        return [np.insert(np.frombuffer(text.encode(), np.uint8).astype(np.int64), 0, 50_256) for text in texts]

    return Tokenizer("gpt2", 256, lambda: encode, "gpt2")


def not_cut(order: Any, encode: Any, length: int, start: Any, progress: Any) -> Iterator[tuple[Row, Any]]:
    """A row for each document, as long as it is."""
    for placed, ids in _tokenized(order, encode, start, progress):
        yield Row(ids, np.zeros(ids.size, np.int32), (placed.shard,), placed.at.epoch), start


def unchecked(encode: Any, documents: Sequence[Any], vocab_size: int) -> list[Any]:
    found: list[Any] = encode([document.text for document in documents])
    return found


def too_long(rank: int = 0, world_size: int = 1) -> Any:
    patch(OPENED, streamed(documents)).start()
    patch("nsa.data.sources.packed_rows", not_cut).start()
    return open_loader(configuration(), rank=rank, world_size=world_size)


def beyond_the_vocabulary(rank: int = 0, world_size: int = 1) -> Any:
    patch(OPENED, streamed(documents)).start()
    patch(_TOKENIZER, of_another_model).start()
    patch("nsa.data.sources.checked_ids", unchecked).start()
    return open_loader(configuration(), rank=rank, world_size=world_size)


def looked_at(factory: str) -> Any:
    """`nsa-doctor data` on a factory of this file, held to the model it feeds."""
    words = ["data", "--subject", f"{__name__}:{factory}", "--batches", "4", "--ranks", "1"]
    return lambda folder: [*words, "--seq-len", str(_LENGTH), "--vocab-size", "256", "--batch-size", "1"]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="documents that are not cut",
            command=looked_at("too_long"),
            expected=found(
                "DAT102", file=_HERE, function="too_long", says=r"rows have \d{4} tokens where seq_len is 1024"
            ),
        ),
        Plant(
            name="ids of another tokenizer",
            command=looked_at("beyond_the_vocabulary"),
            expected=found(
                "DAT101", file=_HERE, function="beyond_the_vocabulary", says=r"outside 0 to 255, the first 50256"
            ),
        ),
    ),
)
