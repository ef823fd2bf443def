"""Archives that lie about themselves, and pickles that take for ever or for more memory than there is."""

import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.case import Case, Kept, archive, pickled, saved

_END = b"PK\x05\x06"
_CENTRAL = b"PK\x01\x02"


def cases() -> Iterator[Case]:
    for name in ("../../evil", "archive/../../evil", "/etc/evil", "archive\\..\\evil", "C:evil"):
        label = name.encode("unicode_escape").decode().replace("/", "_")
        yield Case(f"names-a-place-{label}", _holding(name), ("unsafe",), says="names a place outside")
    yield Case("name-twice", _twice, ("unsafe",), says="two entries are named")
    yield Case("bomb", _bomb, ("unsafe",), says="would unpack to")
    yield Case("bomb-that-claims", _claims, ("unsafe", "corrupt"))
    yield Case("compressed", _compressed, ("unsupported",), says="is compressed")
    yield Case("encrypted", _flagged, ("unsupported",), says="is encrypted")
    yield Case("many-entries", _many, ("limit",), says="250,000 entries")
    yield Case("crc-of-a-tensor", _crc("model/data/3"), ("crc",), says="model/data/3 was changed or damaged")
    yield Case("crc-of-the-pickle", _crc("model/data.pkl", at=-3), ("crc", "corrupt", "unsafe"))
    for name, change in _CHANGES.items():
        yield Case(f"archive-{name}", _changed(change), ("corrupt", "truncated", "unsupported", "unsafe"))
    for name, data in _BOMBS.items():
        is_slow = len(data) > 500_000
        yield Case(f"pickle-{name}", _pickle(data), is_slow=is_slow, kinds=("corrupt", "truncated", "limit", "unsafe"))
    yield Case("pickle-of-a-storage-alone", _pickle_of(lambda: Kept(1)), ("corrupt",), says="are missing")
    for name, (note, says) in _NOTES.items():
        yield Case(f"archive-{name}", _noted(note), ("corrupt",), says=says)
    yield Case("archive-without-a-version", _without_version, ("corrupt",), says="no version")
    for name, make in _HARMLESS.items():
        yield Case(f"pickle-{name}", _pickle_of(make), (), code=3)


def _holding(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return archive(folder / "model.pt", pickled({}), {name: b"x"})

    return make


def _twice(folder: Path) -> Path:
    path = archive(folder / "model.pt", pickled({}))
    with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("archive/data.pkl", pickled({"other": 1}))
    return path


def _bomb(folder: Path) -> Path:
    path = folder / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickled({}))
        with file.open("archive/data/0", "w") as entry:
            for _ in range(64):
                entry.write(bytes(2**20))
    return path


def _claims(folder: Path) -> Path:
    """Says that a stored entry of a few bytes is 4 GB long."""
    path = saved(folder / "model.pt")
    return _rewritten(path, lambda data: _in_directory(data, 24, struct.pack("<I", 2**32 - 2)))


def _compressed(folder: Path) -> Path:
    path = folder / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickled({"a": list(range(100))}))
    return path


def _flagged(folder: Path) -> Path:
    return _rewritten(saved(folder / "model.pt"), lambda data: _in_directory(data, 8, b"\x09\x08"))


def _many(folder: Path) -> Path:
    """A directory of a quarter of a million entries, and nothing else."""
    path = folder / "many.pt"
    head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    entry = struct.pack("<4s6H3I5H2I", _CENTRAL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    count, start = 250_000, len(head)
    directory = entry * count
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 0, 0, 0, count, count, len(directory), start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(directory), 1)
    end = struct.pack("<4s4H2IH", _END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(head + directory + end64 + locator + end)
    return path


def _crc(name: str, at: int = 2) -> Callable[[Path], Path]:
    """Turns one bit of an entry."""

    def make(folder: Path) -> Path:
        path = saved(folder / "model.pt")
        with zipfile.ZipFile(path) as file:
            info = file.getinfo(name)
        data = bytearray(path.read_bytes())
        lengths = struct.unpack_from("<2H", data, info.header_offset + 26)
        first = info.header_offset + 30 + sum(lengths)
        data[first + (at if at >= 0 else info.file_size + at)] ^= 1
        path.write_bytes(data)
        return path

    return make


def _changed(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    return lambda folder: _rewritten(saved(folder / "model.pt"), change)


def _rewritten(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def _in_directory(data: bytes, offset: int, value: bytes) -> bytes:
    """Changes a field of the directory's first entry."""
    place = data.index(_CENTRAL) + offset
    return data[:place] + value + data[place + len(value) :]


def _in_end(data: bytes, offset: int, value: bytes) -> bytes:
    place = data.rindex(_END) + offset
    return data[:place] + value + data[place + len(value) :]


_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "begins-late": lambda data: data[: data.index(b"PK", 4)] + data,
    "ends-late": lambda data: data + b"x" * 10,
    "ends-late-with-another": lambda data: data + data,
    "comment-that-lies": lambda data: _in_end(data, 20, b"\x10\x00"),
    "count-too-large": lambda data: _in_end(data, 8, b"\xff\x0f\xff\x0f"),
    "count-too-small": lambda data: _in_end(data, 8, b"\x01\x00\x01\x00"),
    "one-of-several": lambda data: _in_end(data, 4, b"\x01\x00"),
    "directory-elsewhere": lambda data: _in_end(data, 16, b"\x00\x00\x00\x00"),
    "directory-beyond": lambda data: _in_end(data, 16, b"\xf0\xff\xff\xff"),
    "sizes-of-64-bits-missing": lambda data: _in_end(data.replace(b"PK\6\7", b"PKxx"), 16, b"\xff\xff\xff\xff"),
    "entry-elsewhere": lambda data: _in_directory(data, 42, b"\x07\x00\x00\x00"),
    "entry-beyond": lambda data: _in_directory(data, 42, b"\xf0\xff\xff\x7f"),
    "entry-on-another": lambda data: _in_directory(data, 42, struct.pack("<I", data.index(b"PK\x03\x04", 4))),
    "name-with-a-nul": lambda data: data.replace(b"model/version", b"model/vers\0on"),
    "name-no-text": lambda data: _in_directory(data, 46, b"\xff\xfe"),
    "name-differs": lambda data: _in_directory(data, 46, b"x"),
    "name-too-long": lambda data: _in_directory(data, 28, b"\xff\xff"),
    "method-unknown": lambda data: _in_directory(data, 10, b"\x63\x00"),
    "end-alone": lambda data: data[data.rindex(_END) :],
}


_NOTES = {
    "alignment-no-number": (".storage_alignment", "is no whole number"),
    "id-no-text": (".data/serialization_id", "is no text"),
}


def _noted(name: str) -> Callable[[Path], Path]:
    """An archive with a note that is no text."""
    return lambda folder: archive(folder / "model.pt", pickled({}), {f"archive/{name}": b"\xb94"})


def _without_version(folder: Path) -> Path:
    return archive(folder / "model.pt", pickled({}), {"archive/version": b"none\n"})


def _pickle(data: bytes) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", data)


def _pickle_of(make: Callable[[], object]) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", pickled(make()))


_BOMBS: dict[str, bytes] = {
    "empty": b"",
    "without-an-end": b"\x80\x02}",
    "more-than-one": b"\x80\x02}.\x80\x02}.",
    "nothing-on-the-stack": b"\x80\x02.",
    "pops-too-much": b"\x80\x020000.",
    "tuple-of-too-few": b"\x80\x02K\x01\x87.",
    "recalls-nothing": b"\x80\x02h\x07.",
    "key-without-a-value": b"\x80\x02}(K\x01u.",
    "appends-to-a-number": b"\x80\x02K\x01K\x02a.",
    "items-of-a-number": b"\x80\x02K\x01K\x02K\x03s.",
    "operation-unknown": b"\x80\x02\xff.",
    "buffer": b"\x80\x05\x97.",
    "text-no-text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "text-of-exabytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x00.",
    "bytes-of-exabytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00.",
    "bytearray-of-exabytes": b"\x80\x05\x96" + b"\xff" * 7 + b"\x00.",
    "number-of-gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "number-of-negative-length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "number-of-a-million-digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "number-that-is-none": b"Ix\n.",
    "laughs-of-lists": b"\x80\x02]" + b"2" * 50_000 + b"." + b"x",
    "nests-tuples": b"\x80\x02)" + b"\x85" * 1_000_000 + b".",
    "nests-lists": b"\x80\x02" + b"](" * 300_000 + b"e" * 300_000 + b".",
    "nests-keys": b"\x80\x02)" + b"\x85" * 100_000 + b"q\x00}h\x00h\x00s.",
    "too-many-parts": b"\x80\x02(" + b"N" * 9_000_000 + b"t.",
}


def _self_holding() -> object:
    made: list[object] = []
    made.append(made)
    return {"a": made}


def _tower() -> object:
    made: object = []
    for _ in range(50):
        made = [made] * 10
    return made


_HARMLESS: dict[str, Callable[[], object]] = {
    "that-holds-itself": _self_holding,
    "billion-laughs": _tower,
    "of-a-number": lambda: 3,
    "of-nothing": lambda: None,
}
