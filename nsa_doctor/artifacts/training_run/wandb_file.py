"""The history in a `.wandb` file, which wandb writes offline: records of LevelDB's log that hold protocol buffers.

wandb reads it back in a program of its own alone, so that the two formats are read here, as far as history needs.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct("<4sHB")  # of the file
_IDENTITY, _MAGIC = b":W&B", 0xBEE1
_PART = struct.Struct("<IHB")  # CRC-32C, length, kind
_BLOCK = 1 << 15
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_HISTORY, _ITEM, _KEY, _NESTED_KEY, _VALUE = 2, 1, 1, 2, 16  # numbers of fields in wandb_internal.proto


def history(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows of `wandb.log`, in their order, up to what is cut short; ValueError for a file that is none."""
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[:2] != (_IDENTITY, _MAGIC):
        raise ValueError("it does not begin as wandb's files do")
    for record in _records(data):
        for number, payload in _fields(record):
            if number == _HISTORY:
                yield dict(_item(item) for number, item in _fields(payload) if number == _ITEM)


def _records(data: bytes) -> Iterator[bytes]:
    """What the parts in blocks of 32 KiB make together; a record whose end is missing is not written yet."""
    at, parts = _HEADER.size, bytearray()
    while at + _PART.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PART.size:  # a part does not begin there
            at += left
            continue
        _, length, kind = _PART.unpack_from(data, at)
        at += _PART.size
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or length > left - _PART.size or at + length > len(data):
            return
        if kind in (_WHOLE, _FIRST):
            parts.clear()
        parts += data[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            yield bytes(parts)


def _item(data: bytes) -> tuple[str, Any]:
    """One quantity and its value; a key that is nested is joined by points."""
    key, nested, value = "", list[str](), b"null"
    for number, payload in _fields(data):
        if number == _KEY:
            key = payload.decode(errors="replace")
        elif number == _NESTED_KEY:
            nested.append(payload.decode(errors="replace"))
        elif number == _VALUE:
            value = payload
    return ".".join(nested) or key, json.loads(value)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each field that has a length; numbers, which history has none of, are passed over."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        elif kind == _BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a record ends before its fields do")
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            raise ValueError(f"a field is of kind {kind}, which protocol buffers no longer have")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number does not end")
