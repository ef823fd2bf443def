"""Paths that lead to no file, and files of other kinds."""

import gzip
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.case import Case, is_root, saved, written

FOREIGN = ("foreign",)


def cases() -> Iterator[Case]:
    for name, (kinds, make, says) in _PATHS.items():
        yield Case(f"path-{name}", make, kinds, says=says)
    for name, (file, content, says) in _CONTENTS.items():
        yield Case(f"file-{name}", written(file, content), FOREIGN, says=says)
    for name, (file, content, kinds, says) in _BROKEN.items():
        yield Case(f"file-{name}", written(file, content), kinds, says=says)
    if not is_root():  # whom no permission stops
        yield Case("path-without-permission", _forbidden, ("denied",), says="may not be read")


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.pt")
    return folder / "pipe.pt"


def _socket(folder: Path) -> Path:
    here = Path.cwd()
    os.chdir(folder)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket.pt")
    finally:
        os.chdir(here)
    return folder / "socket.pt"


def _link(folder: Path, target: str, name: str = "link.pt") -> Path:
    (folder / name).symlink_to(target)
    return folder / name


def _circle(folder: Path) -> Path:
    _link(folder, "b.pt", "a.pt")
    return _link(folder, "a.pt", "b.pt")


def _folder(folder: Path) -> Path:
    (folder / "model.pt").mkdir()
    return folder / "model.pt"


def _folder_in_itself(folder: Path) -> Path:
    return _link(folder, ".", "model.safetensors")


def _several(folder: Path) -> Path:
    saved(folder / "one.pt")
    saved(folder / "two.pt")
    return folder


def _nested_folders(folder: Path) -> Path:
    (folder / "pytorch_model.bin").mkdir()
    return folder


def _forbidden(folder: Path) -> Path:
    path = saved(folder / "model.pt")
    path.chmod(0)
    return path


_IRREGULAR, _MISSING = ("irregular",), ("missing",)
_PATHS: dict[str, tuple[tuple[str, ...], Callable[[Path], Path | str], str]] = {
    "missing": (_MISSING, lambda folder: folder / "none.pt", "is not there"),
    "below-a-file": (_MISSING, lambda folder: saved(folder / "model.pt") / "x", "is not there"),
    "nothing": (_MISSING, lambda folder: "", "is not there"),
    "with-a-nul": (_MISSING, lambda folder: f"{folder}/a\0b", "holds a NUL"),
    "too-long": (("denied",), lambda folder: folder / ("x" * 5000), "cannot be read"),
    "that-is-no-text": (_MISSING, lambda folder: os.fsdecode(bytes(folder) + b"/\xff\xfe\x1b[2J"), "is not there"),
    "folder": (_IRREGULAR, _folder, "a folder without a checkpoint"),
    "folder-of-several": (_IRREGULAR, _several, "'one.pt', 'two.pt'; give one"),
    "folder-that-holds-itself": (_IRREGULAR, _folder_in_itself, "where a file should be"),
    "folder-of-folders": (_IRREGULAR, _nested_folders, "where a file should be"),
    "fifo": (_IRREGULAR, _fifo, "a named pipe"),
    "socket": (_IRREGULAR, _socket, "a socket"),
    "device": (_IRREGULAR, lambda folder: "/dev/zero", "a device"),
    "link-to-nothing": (_MISSING, lambda folder: _link(folder, "gone.pt"), "is a link to 'gone.pt'"),
    "link-in-a-circle": (_IRREGULAR, _circle, "leads back to itself"),
    "link-to-a-device": (_IRREGULAR, lambda folder: _link(folder, "/dev/zero"), "a device"),
}

_CONTENTS: dict[str, tuple[str, bytes, str]] = {
    "text": ("model.pt", b"not a checkpoint\n", "is text"),
    "text-that-names-something": ("model.pt", b"count\nvalue\n3\n", "is text"),
    "text-as-safetensors": ("model.safetensors", b"hello, world\n" * 10, "is text"),
    "json-as-safetensors": ("model.safetensors", b'{"a": {"b": 1}}', "is text"),
    "web-page": ("model.pt", b"\n<!DOCTYPE html><html>404</html>", "a web page"),
    "web-page-as-safetensors": ("model.safetensors", b"<html><head><title>Sign in</title>", "a web page"),
    "git-lfs": (
        "model.safetensors",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "git lfs pull",
    ),
    "gzip": ("model.pt", gzip.compress(b"x" * 100), "packed with gzip"),
    "gguf": ("model.gguf", b"GGUF\x03\0\0\0" + bytes(64), "a GGUF file"),
    "numpy": ("model.npy", b"\x93NUMPY\x01\0" + bytes(64), "a numpy array"),
    "hdf5": ("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file"),
    "picture": ("model.pt", b"\x89PNG\r\n\x1a\n" + bytes(range(1, 64)), "a picture"),
    "program": ("model.pt", b"\x7fELF\x02\x01\x01" + bytes(64), "a program"),
    "noise": ("model.pt", bytes(range(0xA0, 0x100)), "of no kind that is known"),
    "index-of-nothing": ("model.safetensors.index.json", b"{}", "no weight_map"),
}

_BROKEN: dict[str, tuple[str, bytes, tuple[str, ...], str]] = {
    "empty": ("model.pt", b"", ("empty",), "is empty"),
    "empty-safetensors": ("model.safetensors", b"", ("empty",), "is empty"),
    "zeros": ("model.pt", bytes(100_000), ("truncated",), "nothing but zero bytes"),
    "zeros-as-safetensors": ("model.safetensors", bytes(100_000), ("truncated",), "nothing but zero bytes"),
    "zeros-before": ("model.pt", bytes(100_000) + b"PK", ("corrupt",), "begins with zero bytes"),
    "one-byte": ("model.pt", b"P", ("truncated",), "is cut short"),
    "few-bytes-of-safetensors": ("model.safetensors", b"\x80\x01\0\0", ("truncated",), "is cut short"),
    "length-alone": ("model.safetensors", struct.pack("<Q", 300), ("truncated",), "announces a header"),
    "empty-archive": ("model.pt", b"PK\x05\x06" + bytes(18), FOREIGN, "not one that torch.save writes"),
    "part-of-several": ("__0_0.distcp", b"PK\x03\x04", _IRREGULAR, "give the folder"),
}
