"""Pickles that run no code and still harm who loads them: calls and keys that take all memory, or for ever."""

import _codecs
import collections
import copyreg
import decimal
import fractions
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.hostile.case import LAYER, Calls, Case, Kept, archive, gate_tensors, pickled, safetensors, saved, tensor

_UTILS = torch._utils
_TOWER = b"K\x01\x85" + b"2\x86" * 60  # a tuple of the same tuple twice, sixty times over
_HEAD = b"\x80\x02"


def cases() -> Iterator[Case]:
    for name, (make, says) in _CALLS.items():
        yield Case(f"cost-{name}", _of(make), ("unsafe",), says=says)
    for name, data in _BY_HAND.items():
        yield Case(f"cost-{name}", _of_bytes(data), ("unsafe",), says="than there is")
    for name, (data, says) in _BROKEN.items():
        yield Case(f"cost-{name}", _of_bytes(data), ("corrupt", "truncated"), says=says)
    for name, (shape, strides) in _HUGE.items():
        yield Case(f"tensor-{name}", _of(lambda s=shape, t=strides: tensor(Kept(4), s, t)), ("corrupt",), says="larger")
    for name, shape in {"huge-side-beside-zero": [0, 2**63], "huge-sides-beside-zero": [0, 2**62, 2**62]}.items():
        yield Case(f"safetensors-{name}", _headed(shape), ("corrupt",), says="larger than any")
    for name, thing in _HEALTHY.items():
        yield Case(f"healthy-{name}", _beside(thing), says=LAYER)


def _of(make: Callable[[], Any]) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", pickled({"x": make()}), {"archive/data/0": bytes(16)})


def _of_bytes(data: bytes) -> Callable[[Path], Path]:
    return lambda folder: archive(folder / "model.pt", data)


def _headed(shape: list[int]) -> Callable[[Path], Path]:
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    return lambda folder: safetensors(folder / "model.safetensors", header)


def _beside(make: Callable[[], Any]) -> Callable[[Path], Path]:
    return lambda folder: saved(folder / "model.pt", {"model": gate_tensors(), "beside": make()})


def _quantised() -> Calls:
    scheme = (torch.per_tensor_affine, 1.0, 0)
    storage = Kept(16, kind=torch.QInt8Storage)
    return Calls(_UTILS._rebuild_qtensor, storage, 0, (2**40,), (0,), scheme, False, OrderedDict())


def _converted() -> Calls:
    wide = tensor(Kept(4), (2**40,), (0,))
    return Calls(_UTILS._rebuild_device_tensor_from_cpu_tensor, wide, torch.float16, "cpu", False)


def _range() -> Calls:
    return Calls(range, 10**12)


_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "bytearray": (lambda: Calls(bytearray, 2**40), "'builtins.bytearray' to make 1,099,511,6"),
    "bytearray-of-many": (lambda: [Calls(bytearray, 2**20) for _ in range(1000)], "'builtins.bytearray'"),
    "bytes": (lambda: Calls(bytes, 2**40), "'builtins.bytes' to make 1,099,511,6"),
    "bytes-of-no-length-there-is": (lambda: Calls(bytes, 2**2000), "more than 2**63"),
    "list-of-a-range": (lambda: Calls(list, _range()), "'builtins.list' to make 1,000,000,000,0"),
    "list-of-a-range-backwards": (lambda: Calls(list, Calls(range, 0, -(10**12), -1)), "'builtins.list'"),
    "set-of-a-range": (lambda: Calls(set, Calls(range, 7, 10**12, 3)), "'builtins.set'"),
    "deque-of-a-range": (lambda: Calls(collections.deque, _range(), 5), "'collections.deque'"),
    "size-of-a-range": (lambda: Calls(torch.Size, _range()), "'torch.Size'"),
    "tensor-of-a-size": (lambda: Calls(torch.Tensor, 2**20, 2**20), "'torch.Tensor'"),
    "tensor-of-python-2": (lambda: Calls(torch.FloatTensor, 2**40), "'torch.FloatTensor'"),
    "storage-of-a-size": (lambda: Calls(torch.UntypedStorage, 2**40), "'torch.storage.UntypedStorage'"),
    "array": (lambda: Calls(numpy._core.multiarray._reconstruct, numpy.ndarray, (2**40,), b"b"), "_reconstruct'"),
    "reconstructor": (lambda: Calls(copyreg._reconstructor, bytes, bytes, 2**40), "'copyreg._reconstructor'"),
    "call-by-a-rebuild": (
        lambda: Calls(torch._tensor._rebuild_from_type_v2, bytearray, torch.Tensor, (2**40,), {}),
        "_rebuild_from_type_v2'",
    ),
    "quantised-of-a-shape": (_quantised, "_rebuild_qtensor'"),
    "converted-of-a-shape": (_converted, "_rebuild_device_tensor_from_cpu_tensor'"),
    "fraction": (lambda: Calls(fractions.Fraction, "1e999999999"), "of more than a plain fraction"),
    "fraction-of-a-decimal": (lambda: Calls(fractions.Fraction, decimal.Decimal("1e999999")), "a plain fraction"),
    "digits-as-text": (lambda: Calls(int, "9" * 10_000), "of more than a short plain value"),
    "encoding": (lambda: Calls(_codecs.encode, "a" * 100, "punycode"), "in an encoding that no file"),
}

_BY_HAND: dict[str, bytes] = {
    "key-that-is-a-tower": _HEAD + b"}" + _TOWER + b"K\x01s.",
    "key-that-is-deep": _HEAD + b"}K\x01" + b"\x85" * 2000 + b"K\x01s.",
    "key-that-a-call-makes": _HEAD + b"}cbuiltins\ntuple\n" + _TOWER + b"\x85RK\x01s.",
    "set-of-a-tower": _HEAD + b"c__builtin__\nset\n]" + _TOWER + b"a\x85R.",
    "set-that-a-tower-is-added-to": b"\x80\x04\x8f(" + _TOWER + b"\x90.",
    "frozen-set-of-a-tower": b"\x80\x04(" + _TOWER + b"\x91.",
    "text-of-a-tower": _HEAD + b"cbuiltins\nstr\n" + _TOWER + b"\x85R.",
    "place-far-away": _HEAD + b"}r\xff\xff\xff\xff.",
}

_BROKEN: dict[str, tuple[bytes, str]] = {
    "frame-of-exabytes": (b"\x80\x04\x95" + b"\xff" * 7 + b"\0}.", "breaks off"),
    "side-of-6000-digits": (pickled({"w": tensor(Kept(4), (2**20000,), (1,))}), "more than 4,300 digits"),
    "number-of-5000-digits": (pickled({"step": 10**5000}), "more than 4,300 digits"),
}

_HUGE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "huge-side-beside-zero": ((0, 2**63), (2**63 - 1, 1)),
    "huge-sides-beside-zero": ((0, 2**62, 2**62), (2**62, 1, 1)),
    "huge-sides-of-one-value": ((2**40, 2**40), (0, 0)),
    "huge-stride-of-one-value": ((1,), (2**2000,)),
}

_HEALTHY: dict[str, Callable[[], Any]] = {
    "range-that-nothing-goes-through": lambda: range(10**12),
    "small-calls": lambda: [
        bytearray(b"abc\xff"),
        b"\xff" * 5000,
        fractions.Fraction(3, 7),
        {3, 4},
        frozenset((1, (2, 3))),
    ],
    "generators": lambda: [numpy.random.get_state(), numpy.random.default_rng(0).bit_generator.state],
    "tuples-as-keys": lambda: {("a", index): {"b": (index, (index,))} for index in range(1000)},
    "arrays": lambda: [numpy.arange(1000.0), numpy.float32(3), decimal.Decimal("1e999")],
}
