"""Files that are no checkpoint that is read: what they are instead, and what to do about it."""

import tarfile
from collections.abc import Callable
from typing import BinaryIO, NoReturn, cast

from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, cut_short, quoted, unsafe
from nsa_doctor.artifacts.checkpoint.limits import MOST_PICKLE, Deadline
from nsa_doctor.artifacts.checkpoint.pickles import read_pickle
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.symbols import is_plain

_OWN_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp")
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_NUM_LEGACY_PICKLES = 5
_MOST_MEMBERS, _MOST_ZEROS = 1000, 2**26
_TEXT = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")
_LFS = b"version https://git-lfs"
_KINDS = (
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a numpy array"),
    (b"PAR1", "a Parquet file"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"#!", "a script"),
    (b"Rar!", "a rar archive"),
)
_PACKED = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"(\xb5/\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x04\x22\x4d\x18", "lz4"),
)
_GIVE = "give a .safetensors or .pt file, or the folder of a checkpoint"
_AGAIN = "load it with torch.load(weights_only=True) if you trust its source, and save it again, best as safetensors"
_HEAD_BYTES, _FEWEST_BYTES, _FEW_BYTES = 512, 8, 64


def refuse(source: Source, deadline: Deadline) -> NoReturn:
    """Raise the fault that says what the file is, if it is not one of the kinds that are read."""
    head = source.read(0, min(_HEAD_BYTES, source.num_bytes))
    name, suffix = source.name, name_suffix(source.name)
    if len(head) < _FEWEST_BYTES and suffix in _OWN_SUFFIXES:
        raise cut_short(name, f"it has {source.num_bytes} bytes")
    if not head.strip(b"\0"):
        if _is_zero(source):
            raise FaultError(
                "truncated",
                f"{name} holds nothing but zero bytes and cannot be read: it was never written; copy or save it again",
            )
        raise corrupt(name, "it begins with zero bytes as no checkpoint does")
    if len(head) > 262 and head[257:262] == b"ustar":
        _refuse_tar(source, deadline)
    if head.startswith(b"\x80") or is_pickle(source, deadline):
        _refuse_pickle(source, deadline)
    if head.startswith(_LFS):
        raise FaultError(
            "foreign", f"{name} is a pointer of Git LFS and not the file itself; fetch it with git lfs pull"
        )
    if head.lstrip().lower().startswith(_TEXT):
        raise FaultError("foreign", f"{name} is a web page: the download got no file; download it again")
    for magic, kind in _PACKED:
        if head.startswith(magic):
            raise FaultError("foreign", f"{name} is packed with {kind}; unpack it, and give what is in it")
    for magic, kind in _KINDS:
        if head.startswith(magic):
            raise FaultError("foreign", f"{name} is {kind}, not a checkpoint; {_GIVE}")
    if _is_text(head):
        raise FaultError("foreign", f"{name} is text, not a checkpoint; {_GIVE}")
    if source.num_bytes < _FEW_BYTES and suffix in _OWN_SUFFIXES:
        raise cut_short(name, f"it has {source.num_bytes} bytes")
    raise FaultError("foreign", f"{name} is of no kind that is known, it begins with {head[:8].hex(' ')}; {_GIVE}")


def is_pickle(source: Source, deadline: Deadline) -> bool:
    """Whether it is one pickle and nothing else, whatever it is called; raises the fault of one that calls for code."""
    data = source.read(0, min(source.num_bytes, MOST_PICKLE))
    is_allowed = is_plain if data.startswith(b"\x80") else _whatever  # a text may name something, but calls nothing
    return _length(data, source.name, is_allowed, deadline) == source.num_bytes


def _whatever(_name: str) -> bool:
    return True


def name_suffix(name: str) -> str:
    """The ending of a file's name as a sentence quotes it."""
    stem, dot, suffix = name.strip("'\"").rpartition(".")
    return f".{suffix.lower()}" if stem and dot else ""


def _is_zero(source: Source) -> bool:
    """Whether it is all zero, as far as one looks."""
    count = min(_MOST_ZEROS, source.num_bytes)
    return source.read(0, count).count(0) == count


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character.isspace() for character in text)


def _refuse_pickle(source: Source, deadline: Deadline) -> NoReturn:
    """Name the code it asks for, or at least what it is."""
    start = 0
    for _ in range(_NUM_LEGACY_PICKLES):
        start += _scanned(source, start, source.num_bytes - start, deadline)
        if start >= source.num_bytes or source.read(start, 1) != b"\x80":
            break
    is_legacy = source.read(0, min(len(_LEGACY_MAGIC), source.num_bytes)) == _LEGACY_MAGIC
    kind = "torch's format of before 1.6, a bare pickle" if is_legacy else "a bare pickle"
    raise unsafe(source.name, f"it is {kind}, which can run code when it is loaded", _AGAIN)


def _scanned(source: Source, start: int, most: int, deadline: Deadline) -> int:
    """How long the pickle there is, 0 where there is none that is whole; raises the fault of one that asks for code."""
    return _length(source.read(start, min(most, MOST_PICKLE)), source.name, is_plain, deadline)


def _length(data: bytes, name: str, is_allowed: Callable[[str], bool], deadline: Deadline) -> int:
    try:
        return read_pickle(data, name, is_allowed, deadline)[1]
    except FaultError as fault:
        if fault.kind == "unsafe":
            raise
        return 0


class _Stream:
    """A source as the stream that tarfile wants."""

    def __init__(self, source: Source) -> None:
        self._source, self._place = source, 0

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = 0) -> int:
        self._place = place + (0, self._place, self._source.num_bytes)[whence]
        return self._place

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._source.num_bytes - self._place)
        count = left if count < 0 else min(count, left)
        data = self._source.read(self._place, min(count, MOST_PICKLE))
        self._place += len(data)
        return data


def _refuse_tar(source: Source, deadline: Deadline) -> NoReturn:
    """The same for a tar archive, in which torch of before 0.4 kept a pickle beside the storages."""
    members: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Stream(source)), mode="r:") as tar:
            for member in tar:
                members.append(member)
                if len(members) >= _MOST_MEMBERS:
                    break
    except (tarfile.TarError, ValueError, OSError, EOFError, OverflowError, RecursionError):
        pass  # what is broken behind the first member does not matter: it is refused
    for member in members:
        name = member.name
        if name.startswith("/") or ".." in name.split("/"):
            raise unsafe(source.name, f"{quoted(name)} in it names a place outside of it")
        if member.isreg() and 0 <= member.offset_data < source.num_bytes:
            _scanned(source, member.offset_data, source.num_bytes - member.offset_data, deadline)
    if {member.name for member in members} & {"pickle", "sys_info"}:
        what = "torch's format of before 0.4, a tar archive with a pickle in it, which can run code when it is loaded"
        raise unsafe(source.name, f"it is {what}", _AGAIN)
    raise FaultError("foreign", f"{source.name} is a tar archive; unpack it where you trust it, and give what is in it")
