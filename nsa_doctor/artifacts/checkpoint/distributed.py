"""A folder that torch.distributed.checkpoint wrote: metadata, itself a pickle, and files of many small archives."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.checkpoint.contents import Contents, Divided, Piece
from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, incomplete, quoted, too_much
from nsa_doctor.artifacts.checkpoint.limits import LONGEST_NAME, MOST_DIMENSIONS, MOST_PICKLE, MOST_TENSORS, Deadline
from nsa_doctor.artifacts.checkpoint.neighbours import open_beside
from nsa_doctor.artifacts.checkpoint.pickled_values import Made, Name, Row, Table
from nsa_doctor.artifacts.checkpoint.pickles import read_pickle
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.symbols import DTYPES, is_metadata
from nsa_doctor.core.text import short_count

METADATA = ".metadata"


@dataclass(frozen=True)
class _Place:
    file: str
    start: int
    num_bytes: int


def read_distributed(
    metadata: Source, folder: Path, stack: ExitStack, read: Callable[[Source], Contents], deadline: Deadline
) -> Contents:
    """Every tensor by name, in the pieces it was saved in; `read` reads one of the archives."""
    if metadata.num_bytes > MOST_PICKLE:
        raise too_much(metadata.name, f"{metadata.num_bytes:,} bytes", MOST_PICKLE)
    data = metadata.read(0, metadata.num_bytes)
    described, length = read_pickle(data, metadata.name, is_metadata, deadline)
    if length != len(data):
        raise corrupt(metadata.name, f"{len(data) - length} bytes follow its end")
    state = _fields(described)
    tensors, places = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(tensors, Table) or not isinstance(places, Table):
        raise corrupt(metadata.name, "it does not say what is stored where")
    found = dict(_place(metadata, key, value) for key, value in places.pairs)
    if len(found) > MOST_TENSORS:
        raise too_much(metadata.name, f"{len(found):,} pieces", MOST_TENSORS)
    files = open_beside(metadata, folder, (place.file for place in found.values()), stack)
    contents = Contents(kind="distributed checkpoint", files=[metadata, *files.values()])

    def opening(key: tuple[str, tuple[int, ...]]) -> Callable[[], Contents]:
        name, offsets = key
        place = found.get(key) or (None if any(offsets) else found.get((name, ())))
        if place is None:
            raise corrupt(metadata.name, f"it does not say where {quoted(name)} is")
        window = files[place.file].window(place.start, place.num_bytes, f"{files[place.file].name}: {quoted(name)}")
        return lambda: read(window)

    opaque: dict[str, Callable[[], Contents]] = {}
    for name, value in tensors.pairs:
        if type(name) is not str or not isinstance(value, Made):
            raise corrupt(metadata.name, "what it says of its contents makes no sense")
        if len(name) > LONGEST_NAME:
            raise too_much(metadata.name, f"a name of {len(name):,} characters", LONGEST_NAME)
        if value.name.endswith(".BytesStorageMetadata"):
            opaque[name] = opening((name, ()))
        else:
            contents.tensors.append(_divided(metadata, name, _fields(value), opening))
    contents.opaque = opaque
    return contents


def _fields(node: Any) -> dict[str, Any]:
    """What was put into a record, by name."""
    state = node.state if isinstance(node, Made) else None
    pairs = state.pairs if isinstance(state, Table) else []
    return {key: value for key, value in pairs if type(key) is str}


def _place(metadata: Source, key: Any, value: Any) -> tuple[tuple[str, tuple[int, ...]], _Place]:
    index, info = _fields(key), _fields(value)
    name, offset = index.get("fqn"), _sizes(index.get("offset"))
    file, start, length = (info.get(part) for part in ("relative_path", "offset", "length"))
    if type(name) is not str or offset is None or type(file) is not str:
        raise corrupt(metadata.name, "what it says of a place makes no sense")
    if type(start) is not int or type(length) is not int or start < 0 or length < 0:
        raise corrupt(metadata.name, "what it says of a place makes no sense")
    if info.get("transform_descriptors"):
        raise FaultError(
            "unsupported", f"{metadata.name}: {quoted(name)} is stored compressed, which is not read; save it without"
        )
    return (name, offset), _Place(file, start, length)


def _divided(
    metadata: Source,
    name: str,
    said: dict[str, Any],
    opening: Callable[[tuple[str, tuple[int, ...]]], Callable[[], Contents]],
) -> Divided:
    shape, dtype = _sizes(said.get("size")), _dtype(said.get("properties"))
    chunks = said.get("chunks")
    if shape is None or dtype is None or not isinstance(chunks, Row):
        raise corrupt(metadata.name, f"the description of {quoted(name)} makes no sense")
    pieces = []
    for chunk in chunks.items:
        offsets, sizes = (_sizes(_fields(chunk).get(part)) for part in ("offsets", "sizes"))
        if offsets is None or sizes is None or not len(offsets) == len(sizes) == len(shape):
            raise corrupt(metadata.name, f"the description of {quoted(name)} makes no sense")
        if any(first + size > whole for first, size, whole in zip(offsets, sizes, shape, strict=True)):
            raise corrupt(metadata.name, f"a piece of {quoted(name)} lies outside of it")
        pieces.append(Piece(offsets=offsets, shape=sizes, open=opening((name, offsets))))
    there, whole = sum(math.prod(piece.shape) for piece in pieces), math.prod(shape)
    if there != whole:
        raise incomplete(
            metadata.name, f"of {quoted(name)} {there:,} values are stored, and it has {short_count(whole)}"
        )
    return Divided(name=name, dtype=dtype, shape=shape, pieces=tuple(pieces))


def _dtype(properties: Any) -> str | None:
    """The dtype in a record of properties, whose state is a tuple that begins with it."""
    state = properties.state if isinstance(properties, Made) else None
    first = state[0] if isinstance(state, tuple) and state else None
    return first.text.removeprefix("torch.") if isinstance(first, Name) and first.text in DTYPES else None


def _sizes(node: Any) -> tuple[int, ...] | None:
    """A torch.Size; nothing at all is the place of a whole that is not divided."""
    if node is None:
        return ()
    if isinstance(node, Made) and node.name == "torch.Size" and isinstance(node.arguments, tuple) and node.arguments:
        sizes = node.arguments[0]
        if isinstance(sizes, tuple) and len(sizes) <= MOST_DIMENSIONS:
            return sizes if all(type(size) is int and size >= 0 for size in sizes) else None
    return None
