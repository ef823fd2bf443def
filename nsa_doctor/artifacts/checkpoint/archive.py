"""A zip archive measured before it is read: its directory, and whether that agrees with the file.

Only what torch.save writes is let through: entries stored as they are, one after another, none of them twice. No entry
is ever unpacked, so that no name and no size in the directory can do more than be wrong.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, cut_short, quoted, too_much, unsafe
from nsa_doctor.artifacts.checkpoint.limits import MOST_DIRECTORY, MOST_TENSORS
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.core.text import short_bytes

MAGIC = b"PK\x03\x04"
_END, _END64, _LOCATOR, _CENTRAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02"
_END_BYTES, _END64_BYTES, _LOCATOR_BYTES, _CENTRAL_BYTES, _LOCAL_BYTES = 22, 56, 20, 46, 30
_LONGEST_COMMENT = 65_535
_NO_16, _NO_32 = 0xFFFF, 0xFFFFFFFF
_LONGEST_NAME = 1024
_BOMB = 100  # times its packed size


@dataclass(frozen=True)
class Entry:
    """One stored entry: its name, its first byte, its length, and its CRC-32 as the directory has it."""

    name: str
    start: int
    num_bytes: int
    crc: int


@dataclass(frozen=True)
class _Record:
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    unpacked: int
    header: int


def read_directory(source: Source) -> dict[str, Entry]:
    """Every entry by name, in the order of the file; a FaultError says what is wrong with it."""
    count, start, end = _find_directory(source)
    if count > MOST_TENSORS:
        raise too_much(source.name, f"{count:,} entries", MOST_TENSORS)
    if end - start > MOST_DIRECTORY:
        raise too_much(source.name, f"a directory of {end - start:,} bytes", MOST_DIRECTORY)
    records = sorted(_records(source, count, start, end), key=lambda record: record.header)
    _check_names(source, records)
    _check_packing(source, records)
    entries: dict[str, Entry] = {}
    free = 0
    for record in records:
        if record.header < free or (not entries and record.header != 0):
            what = "overlaps the one before it" if entries else f"begins {record.header} bytes into the file"
            raise corrupt(source.name, f"entry {quoted(record.name)} {what}")
        first = _first_byte(source, record)
        free = first + record.packed
        if free > start:
            raise corrupt(source.name, f"entry {quoted(record.name)} reaches into the directory")
        entries[record.name] = Entry(record.name, first, record.unpacked, record.crc)
    return entries


def _find_directory(source: Source) -> tuple[int, int, int]:
    """How many entries, and where their directory starts and ends."""
    size = min(source.num_bytes, _END_BYTES + _LONGEST_COMMENT)
    tail = source.read(source.num_bytes - size, size)
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < _END_BYTES:
        raise cut_short(source.name, "the directory that ends such an archive is missing")
    disk, first_disk, here, count, length, start, comment = struct.unpack_from("<4H2IH", tail, place + 4)
    beyond = len(tail) - place - _END_BYTES - comment
    if beyond:
        what = f"{beyond} bytes follow its end" if beyond > 0 else "its comment reaches beyond its end"
        raise corrupt(source.name, what)
    position = end = source.num_bytes - size + place
    if disk or first_disk or here != count:
        raise corrupt(source.name, "it claims to be a part of several")
    locator = position - _LOCATOR_BYTES
    if locator >= 0 and source.read(locator, len(_LOCATOR)) == _LOCATOR:
        end, *wide = _find_directory64(source, locator)
        for narrow, none, value in zip((count, length, start), (_NO_16, _NO_32, _NO_32), wide, strict=True):
            if narrow not in (none, value):
                raise corrupt(source.name, f"its end says both {narrow} and {value}")
        count, length, start = wide
    if start + length != end or count * _CENTRAL_BYTES > length:
        raise corrupt(source.name, f"its directory does not lie where its end says ({start} + {length}, not {end})")
    return count, start, end


def _find_directory64(source: Source, locator: int) -> tuple[int, int, int, int]:
    """Where the larger record of the end lies, the number of entries, and length and start of their directory."""
    (end,) = struct.unpack_from("<Q", source.read(locator, _LOCATOR_BYTES), 8)
    if end + _END64_BYTES != locator:
        raise corrupt(source.name, "its end points elsewhere")
    record = source.read(end, _END64_BYTES)
    disk, first_disk, here, count, length, start = struct.unpack_from("<2I4Q", record, 16)
    if record[: len(_END64)] != _END64 or disk or first_disk or here != count:
        raise corrupt(source.name, "its end points at something else")
    return end, count, length, start


def _records(source: Source, count: int, start: int, end: int) -> Iterator[_Record]:
    directory = source.read(start, end - start)
    place = 0
    for _ in range(count):
        if len(directory) - place < _CENTRAL_BYTES or directory[place : place + 4] != _CENTRAL:
            raise corrupt(source.name, "its directory ends before its last entry")
        flags, method, crc, packed, unpacked, name, extra, comment, disk, header = struct.unpack_from(
            "<2H4x3I4H6xI", directory, place + 8
        )[:10]
        place += _CENTRAL_BYTES
        named = directory[place : place + name]
        extras = directory[place + name : place + name + extra]
        place += name + extra + comment
        if disk or place > len(directory):
            raise corrupt(source.name, "its directory ends before its last entry")
        unpacked, packed, header = _wide(source, extras, unpacked, packed, header)
        yield _Record(_decoded(source, named), flags, method, crc, packed, unpacked, header)
    if place != len(directory):
        raise corrupt(source.name, "its directory holds more than its entries")


def _wide(source: Source, extras: bytes, *values: int) -> tuple[int, ...]:
    """The values, those that do not fit 32 bits from where the extra field has them."""
    if _NO_32 not in values:
        return values
    place = 0
    while place + 4 <= len(extras):
        kind, length = struct.unpack_from("<2H", extras, place)
        if kind == 1:
            field = extras[place + 4 : place + 4 + length]
            wide = [int.from_bytes(field[at : at + 8], "little") for at in range(0, len(field) - 7, 8)]
            if len(wide) >= values.count(_NO_32):
                given = iter(wide)
                return tuple(next(given) if value == _NO_32 else value for value in values)
        place += 4 + length
    raise corrupt(source.name, "the size of an entry is missing")


def _decoded(source: Source, name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise corrupt(source.name, f"the name of an entry is no text ({quoted(repr(name[:40]))})") from None


def _check_names(source: Source, records: list[_Record]) -> None:
    seen: set[str] = set()
    for record in records:
        name = record.name
        if name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/") or name[1:2] == ":":
            raise unsafe(source.name, f"entry {quoted(name)} names a place outside of it")
        if name in seen:
            raise unsafe(source.name, f"two entries are named {quoted(name)}, and readers differ over which counts")
        if len(name) > _LONGEST_NAME:
            raise corrupt(source.name, f"the name of an entry has {len(name):,} characters")
        seen.add(name)


def _check_packing(source: Source, records: list[_Record]) -> None:
    """Refuse what is packed: torch stores its entries as they are."""
    packed, unpacked = sum(each.packed for each in records), sum(each.unpacked for each in records)
    for what, small, large in (("it", packed, unpacked), *_sizes(records)):
        if large > _BOMB * max(small, 1):
            times = f"{large // max(small, 1):,} times its size"
            raise unsafe(source.name, f"{what} would unpack to {short_bytes(large)}, {times}")
    for record in records:
        name = quoted(record.name)
        if record.flags & 1:
            raise FaultError("unsupported", f"{source.name} is encrypted ({name}); save it with torch.save as it is")
        if record.method:
            raise FaultError(
                "unsupported",
                f"{source.name} is compressed ({name}), as torch.save never does; load it with weights_only=True, and "
                "save it again",
            )
        if record.packed != record.unpacked:
            raise corrupt(source.name, f"entry {name} has {record.packed} bytes and claims {record.unpacked}")


def _sizes(records: list[_Record]) -> Iterator[tuple[str, int, int]]:
    return ((f"entry {quoted(record.name)}", record.packed, record.unpacked) for record in records)


def _first_byte(source: Source, record: _Record) -> int:
    """Where an entry's bytes begin: behind its own header, which must name it alike."""
    header = source.read(record.header, _LOCAL_BYTES)
    name, extra = struct.unpack_from("<2H", header, 26)
    named = source.read(record.header + _LOCAL_BYTES, name) if header[:4] == MAGIC else b""
    if named != record.name.encode():
        raise corrupt(source.name, f"entry {quoted(record.name)} is not where the directory says")
    return record.header + _LOCAL_BYTES + name + extra
