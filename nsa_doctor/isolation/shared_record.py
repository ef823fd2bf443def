"""A page of memory that two processes share: what a child wrote last is there when the child no longer is."""

import json
from collections.abc import Mapping
from mmap import mmap
from typing import Any

_BYTES = 4096
_LENGTH_BYTES = 4
NUM_PAGES = 3
TRAIL, SIGHTING, LAST_WILL = range(NUM_PAGES)
FILE_BYTES = NUM_PAGES * _BYTES


class SharedRecord:
    """One record on one page of an open file of FILE_BYTES; each is written over the one before."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._memory = mmap(descriptor, FILE_BYTES)
        self._begin = number * _BYTES

    def write(self, record: Mapping[str, Any] | None) -> None:
        """Put a record there, or none; one that does not fit leaves none."""
        body = b"" if record is None else json.dumps(record).encode()
        body = body if len(body) <= _BYTES - _LENGTH_BYTES else b""
        start = self._begin + _LENGTH_BYTES
        self._memory[start : start + len(body)] = body
        self._memory[self._begin : start] = len(body).to_bytes(_LENGTH_BYTES)

    def read(self) -> dict[str, Any] | None:
        """The record, or None where there is none or the process that wrote it was not done."""
        start = self._begin + _LENGTH_BYTES
        length = int.from_bytes(self._memory[self._begin : start])
        try:
            record = json.loads(self._memory[start : start + min(length, _BYTES - _LENGTH_BYTES)])
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
