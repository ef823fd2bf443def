"""Text to token ids: bytes, GPT-2's, or those of any `tokenizers` file."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nsa.config import DataConfig
from nsa.data.batch import Words
from nsa.data.documents import Document
from nsa.data.errors import Blame, DataError
from nsa.strict import plain

Encoder = Callable[[list[str]], list[Words]]

_GPT2_END = "<|endoftext|>"
_LARGEST_FILE = 1 << 28


@dataclass(frozen=True)
class Tokenizer:
    """`load()` gives the function from texts to their ids, over the network for gpt2; ids are below `vocab_size`."""

    name: str
    vocab_size: int
    load: Callable[[], Encoder]
    fingerprint: str


def open_tokenizer(data: DataConfig) -> Tokenizer:
    """What `data.tokenizer` names; a file is read at once."""
    match data.tokenizer:
        case "byte":
            return Tokenizer("byte", 256, lambda: _bytes, "byte")
        case "gpt2":
            return Tokenizer("gpt2", 50_257, _load_gpt2, "gpt2")
    return _from_file(Path(data.tokenizer).expanduser(), data.end_token)


def checked_ids(encode: Encoder, documents: list[Document], vocab_size: int) -> list[Words]:
    """The ids of documents, each below the model's `vocab_size`; raises DataError that names the first that is not."""
    with Blame("tokenize", documents[0].name):
        found = encode([document.text for document in documents])
    for document, ids in zip(documents, found, strict=True):
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            column = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
            raise DataError(
                f"{document.name}: token {column} has id {ids[column]}, and model.vocab_size is {vocab_size}: "
                "give the model as many ids as the tokenizer has"
            )
    return found


def _bytes(texts: list[str]) -> list[Words]:
    return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64) for text in texts]


def _load_gpt2() -> Encoder:
    with Blame("open", "tokenizer gpt2 of the hub (a tokenizers file by its path needs no network)"):
        from tokenizers import Tokenizer as Library

        return _encoder(Library.from_pretrained("gpt2"), _GPT2_END, "gpt2")


def _from_file(path: Path, end_token: str | None) -> Tokenizer:
    name = f"tokenizer {plain(str(path))}"
    try:
        is_regular = path.is_file()
    except ValueError:  # a null character
        is_regular = False
    if not is_regular:
        raise DataError(f"{name}: there is no such file: data.tokenizer must be byte, gpt2 or a tokenizers file")
    with Blame("open", name):
        if path.stat().st_size > _LARGEST_FILE:
            raise DataError(f"{name}: must be at most {_LARGEST_FILE} bytes, got {path.stat().st_size}")
        raw = path.read_bytes()
        from tokenizers import Tokenizer as Library

        library = Library.from_str(raw.decode("utf-8"))
        encode = _encoder(library, end_token, name)
        highest = max(library.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest < 0:
        raise DataError(f"{name}: has no tokens")
    return Tokenizer(name, highest + 1, lambda: encode, blake2b(raw, digest_size=8).hexdigest())


def _encoder(library: Any, end_token: str | None, name: str) -> Encoder:
    library.no_truncation()  # a file may ask for it, and then text would be lost
    library.no_padding()
    end = []
    if end_token is not None:
        number = library.token_to_id(end_token)
        if number is None:
            raise DataError(f"{name}: has no token {plain(end_token)}, which data.end_token names")
        end = [number]

    def encode(texts: list[str]) -> list[Words]:
        found = library.encode_batch_fast(texts, add_special_tokens=False)  # on all cores
        return [np.array([*each.ids, *end], np.int64) for each in found]

    return encode
