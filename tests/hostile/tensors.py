"""Tensors that are not where they say, or larger than any file; and safetensors headers that lie."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.hostile.case import Calls, Case, Kept, archive, pickled, safetensors, tensor

_FOUR = bytes(16)  # four numbers of 32 bits
_REBUILD = torch._utils._rebuild_tensor_v2


def cases() -> Iterator[Case]:
    for name, (described, says) in _DESCRIBED.items():
        yield Case(f"tensor-{name}", _described(described), ("corrupt",), says=says)
    yield Case("tensor-million", _million, ("limit",), says="and at most", is_slow=True)
    for name, (header, data, kinds, says) in _HEADERS.items():
        yield Case(f"safetensors-{name}", _headed(header, data), kinds, says=says)
    for name, length in {"header-longer": 4096, "header-of-exabytes": 2**62, "header-at-the-limit": 2**64 - 1}.items():
        yield Case(f"safetensors-{name}", _long(length), ("truncated",), says="announces a header")
    yield Case("safetensors-million", _million_in_header, ("limit",), says="250,000 tensors")
    yield Case("safetensors-header-alone", _headed({}, b""), (), code=3)


def _described(thing: Callable[[], Any]) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", pickled({"w": thing()}), {"archive/data/0": _FOUR})


_DESCRIBED: dict[str, tuple[Callable[[], Any], str]] = {
    "absurd-shape": (lambda: tensor(Kept(4), (2**60,), (1,)), "reaches beyond"),
    "absurd-shapes": (lambda: tensor(Kept(4), (2**60, 2**60, 2**60), (2**62, 2**61, 1)), "reaches beyond"),
    "shape-of-a-googol": (lambda: tensor(Kept(4), (10**100,), (1,)), "huge"),
    "overflowing-product": (lambda: tensor(Kept(4), (2**32, 2**32), (2**32, 1)), "reaches beyond"),
    "absurd-stride": (lambda: tensor(Kept(4), (2,), (2**62,)), "reaches beyond"),
    "negative-stride": (lambda: tensor(Kept(4), (2,), (-1,)), "makes no sense"),
    "negative-size": (lambda: tensor(Kept(4), (-2,), (1,)), "makes no sense"),
    "negative-offset": (lambda: tensor(Kept(4), (2,), (1,), -1), "makes no sense"),
    "offset-beyond": (lambda: tensor(Kept(4), (2,), (1,), 3), "reaches beyond"),
    "offset-of-exabytes": (lambda: tensor(Kept(4), (1,), (1,), 2**62), "reaches beyond"),
    "scalar-beyond": (lambda: tensor(Kept(4), (), (), 4), "reaches beyond"),
    "size-a-float": (lambda: tensor(Kept(4), (2.0,), (1,)), "makes no sense"),
    "size-a-truth": (lambda: tensor(Kept(4), (True,), (1,)), "makes no sense"),
    "size-a-text": (lambda: tensor(Kept(4), "22", (1, 1)), "makes no sense"),
    "size-none": (lambda: tensor(Kept(4), None, None), "makes no sense"),
    "ranks-differ": (lambda: tensor(Kept(4), (2, 2), (1,)), "makes no sense"),
    "thousands-of-dimensions": (lambda: tensor(Kept(4), (1,) * 5000, (1,) * 5000), "5,000 dimensions"),
    "storage-missing": (lambda: tensor(Kept(4, key="9"), (2,), (1,)), "are missing"),
    "storage-elsewhere": (lambda: tensor(Kept(4, key="../data.pkl"), (2,), (1,)), "are missing"),
    "storage-larger": (lambda: tensor(Kept(5), (2,), (1,)), "has 16 bytes and not 20"),
    "storage-smaller": (lambda: tensor(Kept(3), (2,), (1,)), "has 16 bytes and not 12"),
    "storage-of-exabytes": (lambda: tensor(Kept(2**62), (2,), (1,)), "has 16 bytes and not"),
    "storage-of-negative-size": (lambda: tensor(Kept(-4), (2,), (1,)), "makes no sense"),
    "storage-of-no-class": (lambda: tensor(Kept(4, kind="FloatStorage"), (2,), (1,)), "makes no sense"),
    "storage-key-a-number": (lambda: tensor(Kept(4, key=0), (2,), (1,)), "makes no sense"),
    "storage-none": (lambda: tensor(None, (2,), (1,)), "makes no sense"),
    "storage-a-tensor": (lambda: tensor(tensor(Kept(4), (2,), (1,)), (2,), (1,)), "makes no sense"),
    "too-few-arguments": (lambda: Calls(_REBUILD, Kept(4)), "makes no sense"),
    "dtype-missing": (
        lambda: Calls(torch._utils._rebuild_tensor_v3, Kept(4), 0, (2,), (1,), False, OrderedDict()),
        "makes no sense",
    ),
    "dtype-no-dtype": (
        lambda: Calls(
            torch._utils._rebuild_tensor_v3, Kept(4), 0, (2,), (1,), False, OrderedDict(), torch.FloatStorage, None
        ),
        "makes no sense",
    ),
}


def _million(folder: Path) -> Path:
    """A quarter of a million tensors that share four numbers."""
    one = tensor(Kept(4), (1,), (1,))
    data = pickled({"w": one})
    inner = data[data.index(b"ctorch") : data.rindex(b"s.")]
    return archive(
        folder / "model.pt", b"\x80\x02](" + inner + b"h" * 0 + b"2" * 250_000 + b"e.", {"archive/data/0": _FOUR}
    )


def _headed(header: Any, data: bytes) -> Callable[[Path], Path]:
    return lambda folder: safetensors(folder / "model.safetensors", header, data)


def _long(length: int) -> Callable[[Path], Path]:
    return lambda folder: safetensors(folder / "model.safetensors", _one(), _FOUR, length)


def _million_in_header(folder: Path) -> Path:
    names = (f'"{index}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for index in range(250_000))
    return safetensors(folder / "model.safetensors", f"{{{','.join(names)}}}".encode())


def _one(shape: Any = (4,), offsets: Any = (0, 16), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


def _two(first: Any, second: Any) -> dict[str, Any]:
    return {"a": _one((2,), first)["w"], "b": _one((2,), second)["w"]}


_Expected = tuple[Any, bytes, tuple[str, ...], str]
_CORRUPT = ("corrupt",)
_HEADERS: dict[str, _Expected] = {
    "no-json": (b"{nothing}", b"", _CORRUPT, "is no JSON"),
    "no-object": (b"[1, 2]   ", b"", _CORRUPT, "is no JSON object"),
    "no-text": (b'{"\xff\xfe": 1}', b"", _CORRUPT, "is no text"),
    "nested-deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"", _CORRUPT, "nests too deep"),
    "lists-deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", _CORRUPT, "nests too deep"),
    "key-twice": (b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"w":1}', b"", _CORRUPT, "twice"),
    "key-twice-inside": (b'{"w":{"dtype":"F32","shape":[4],"shape":[4]}}', _FOUR, _CORRUPT, "twice"),
    "number-of-thousands-of-digits": (
        b'{"w":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,0]}}',
        b"",
        _CORRUPT,
        "is too long",
    ),
    "number-of-hundreds-of-digits": (_one((10**300,)), _FOUR, _CORRUPT, "does not take"),
    "not-a-number": (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,0]}}', b"", _CORRUPT, "no number of JSON"),
    "shape-a-float": (_one((4.0,)), _FOUR, _CORRUPT, "makes no sense"),
    "shape-negative": (_one((-4,)), _FOUR, _CORRUPT, "makes no sense"),
    "shape-a-truth": (_one((True,)), _FOUR, _CORRUPT, "makes no sense"),
    "shape-a-text": (_one("4"), _FOUR, _CORRUPT, "makes no sense"),
    "shape-absurd": (_one((2**60,)), _FOUR, _CORRUPT, "does not take"),
    "shape-absurd-product": (_one((2**32, 2**32)), _FOUR, _CORRUPT, "does not take"),
    "shape-too-small": (_one((3,)), _FOUR, _CORRUPT, "does not take"),
    "shape-of-thousands": (_one((1,) * 5000), _FOUR, _CORRUPT, "makes no sense"),
    "offsets-overlap": (_two((0, 8), (4, 12)), bytes(12), _CORRUPT, "overlaps"),
    "offsets-the-same": (_two((0, 8), (0, 8)), bytes(8), _CORRUPT, "overlaps"),
    "offsets-with-a-gap": (_two((0, 8), (12, 20)), bytes(20), _CORRUPT, "unused"),
    "offsets-reversed": (_one(offsets=(16, 0)), _FOUR, _CORRUPT, "makes no sense"),
    "offsets-beyond": (_one(offsets=(0, 2**60)), _FOUR, ("truncated",), "is cut short"),
    "offsets-negative": (_one(offsets=(-16, 0)), _FOUR, _CORRUPT, "makes no sense"),
    "offsets-three": (_one(offsets=(0, 8, 16)), _FOUR, _CORRUPT, "makes no sense"),
    "offsets-missing": ({"w": {"dtype": "F32", "shape": [4]}}, _FOUR, _CORRUPT, "makes no sense"),
    "entry-a-number": ({"w": 3}, _FOUR, _CORRUPT, "makes no sense"),
    "dtype-a-number": (_one(dtype=3), _FOUR, _CORRUPT, "makes no sense"),
    "metadata-no-text": ({"__metadata__": {"a": {"b": 1}}, **_one()}, _FOUR, _CORRUPT, "metadata is not text"),
    "bytes-after": (_one(), _FOUR + b"more", _CORRUPT, "follow its last tensor"),
    "pickle-after": (_one(), _FOUR + b"\x80\x02cos\nsystem\n.", _CORRUPT, "follow its last tensor"),
    "archive-after": (_one(), _FOUR + b"PK\x03\x04", _CORRUPT, "follow its last tensor"),
    "value-missing": (_one(), _FOUR[:-1], ("truncated",), "is cut short"),
}
