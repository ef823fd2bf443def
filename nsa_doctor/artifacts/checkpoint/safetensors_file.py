"""A safetensors file: eight bytes of length, a header that says what lies where, and the values."""

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

from nsa_doctor.artifacts.checkpoint.contents import Contents, Stored
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES
from nsa_doctor.artifacts.checkpoint.extents import is_addressable
from nsa_doctor.artifacts.checkpoint.fault import corrupt, cut_short, quoted, too_much
from nsa_doctor.artifacts.checkpoint.json_text import read_json
from nsa_doctor.artifacts.checkpoint.limits import LONGEST_NAME, MOST_DIMENSIONS, MOST_HEADER, MOST_TENSORS, Deadline
from nsa_doctor.artifacts.checkpoint.source import Source

SUFFIX = ".safetensors"
_UNSUMMED = "safetensors keeps no checksum: values that changed since it was written cannot be detected"
_LENGTH_BYTES = 8
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
_FRACTIONS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits; all their values are finite


def header_length(head: bytes) -> int:
    """The length a file announces for its header in its first eight bytes."""
    return int.from_bytes(head[:_LENGTH_BYTES], "little")


def read_safetensors(source: Source, deadline: Deadline) -> Contents:
    """Every tensor of the file; a FaultError where header and file contradict each other."""
    length = header_length(source.read(0, _LENGTH_BYTES))
    room = source.num_bytes - _LENGTH_BYTES
    if length > room:
        raise cut_short(source.name, f"it announces a header of {length:,} bytes, and {room:,} follow")
    if length > MOST_HEADER:
        raise too_much(source.name, f"a header of {length:,} bytes", MOST_HEADER)
    text = source.read(_LENGTH_BYTES, length)
    count = text.count(b'"dtype"')
    if count > MOST_TENSORS:
        raise too_much(source.name, f"{count:,} tensors", MOST_TENSORS)
    header = read_json(text, f"{source.name}: its header")
    deadline.check(f"reading {source.name}")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise corrupt(source.name, "its metadata is not text")
    values = source.window(_LENGTH_BYTES + length, room - length, f"{source.name}: its values")
    contents = Contents(kind="safetensors", files=[source], notes=[_UNSUMMED])
    contents.tensors += _tensors(source, values, header)
    return contents


def _tensors(source: Source, values: Source, header: dict[str, Any]) -> Iterator[Stored]:
    """The tensors by where they lie, which must be one behind the other from the first byte to the last."""
    longest = max(map(len, header), default=0)
    if longest > LONGEST_NAME:
        raise too_much(source.name, f"a name of {longest:,} characters", LONGEST_NAME)
    extents = sorted((_extent(source, name, entry), name) for name, entry in header.items())
    free, last = 0, ""
    for (start, end), name in extents:
        if start != free:
            what = f"overlaps {quoted(last)}" if start < free else f"leaves {start - free:,} bytes before it unused"
            raise corrupt(source.name, f"{quoted(name)} {what}")
        free, last = end, name
    if free > values.num_bytes:
        raise cut_short(source.name, f"its tensors take {free:,} bytes, and {values.num_bytes:,} are there")
    if free < values.num_bytes:
        raise corrupt(source.name, f"{values.num_bytes - free:,} bytes follow its last tensor")
    for (start, end), name in extents:
        yield _tensor(source, name, header[name], values.window(start, end - start, source.name))


def _extent(source: Source, name: str, entry: Any) -> tuple[int, int]:
    if isinstance(entry, dict):
        shape, extent = entry.get("shape"), entry.get("data_offsets")
        is_shape = _is_sizes(shape) and len(shape) <= MOST_DIMENSIONS
        if is_shape and _is_sizes(extent) and len(extent) == 2 and isinstance(entry.get("dtype"), str):
            start, end = extent
            if start <= end:
                return start, end
    raise corrupt(source.name, f"the description of {quoted(name)} makes no sense")


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _tensor(source: Source, name: str, entry: dict[str, Any], storage: Source) -> Stored:
    shape, code = tuple(entry["shape"]), entry["dtype"]
    if not is_addressable(shape, BYTES.get(_DTYPES.get(code, ""), 1)):
        what = f"{quoted(name)} is larger than any tensor can be, and does not take {storage.num_bytes:,} bytes"
        raise corrupt(source.name, what)
    count = math.prod(shape)
    if code not in _DTYPES and code not in _FRACTIONS:
        return Stored(name=name, dtype=str(code)[:40], shape=shape, unread=f"its dtype {quoted(code)} is not known")
    bits = _FRACTIONS[code] if code in _FRACTIONS else 8 * BYTES[_DTYPES[code]]
    if count * bits != 8 * storage.num_bytes:
        sizes = "x".join(map(str, shape[:8]))
        what = f"{quoted(name)} of shape {sizes} and dtype {code} does not take {storage.num_bytes:,} bytes"
        raise corrupt(source.name, what)
    if code in _FRACTIONS:
        return Stored(name=name, dtype="bits8", shape=(storage.num_bytes,), strides=(1,), storage=storage)
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return Stored(name=name, dtype=_DTYPES[code], shape=shape, strides=tuple(reversed(strides)), storage=storage)
