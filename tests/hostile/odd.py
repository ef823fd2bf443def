"""Checkpoints that look odd and are healthy, beside some whose values are not; both are read."""

import argparse
import json
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from tests.hostile.case import LAYER, Case, gate_tensors, safetensors, saved

_NAME = "\x1b[2J\x1b]0;pwned\x07[bold red]owned[/bold red]\r\n\u202e"


def cases() -> Iterator[Case]:
    for name, make in _HEALTHY.items():
        yield Case(f"healthy-{name}", _saved(make), says=LAYER)
    for protocol in (2, 3, 4, 5):
        yield Case(f"healthy-protocol-{protocol}", _protocol(protocol), says=LAYER)
    yield Case("healthy-without-checksums", _without_checksums, says="saved without checksums")
    yield Case("healthy-safetensors", _safetensors(), says=LAYER)
    yield Case("healthy-safetensors-of-odd-dtypes", _safetensors(**_odd_entries()), says=LAYER)
    yield Case("unknown-dtype", _safetensors(odd=("Q9", [4], bytes(4))), code=3, says="Q9")
    yield Case("unknown-dtype-of-a-gate", _safetensors(**{f"{LAYER}.fc2.weight": ("Q9", [3, 8], bytes(24))}), code=3)
    yield Case("names-that-a-terminal-obeys", _saved(lambda: _renamed(_NAME)), says="pwned")
    yield Case("names-in-a-header", _safetensors(**{_NAME: ("F32", [1], bytes(4))}), says=LAYER)
    yield Case("name-of-a-megabyte", _saved(lambda: {"x" * 2**20: torch.ones(1), **gate_tensors()}), says=LAYER)
    for name, make in _FAULTY.items():
        yield Case(f"not-finite-{name}", _saved(make), code=1)
    yield Case("zero-gate", _saved(lambda: _changed(f"{LAYER}.fc2.weight", torch.zeros_like)), code=1)
    yield Case("no-gate", _saved(lambda: {"w": torch.ones(2)}), code=3)
    yield Case("no-tensor", _saved(lambda: {"step": 1}), code=3)
    yield Case("gate-without-values", _saved(_meta), code=3)


def _saved(make: Callable[[], Any]) -> Callable[[Path], Path]:
    return lambda folder: saved(folder / "model.pt", make())


def _protocol(protocol: int) -> Callable[[Path], Path]:
    return lambda folder: saved(folder / "model.pt", pickle_protocol=protocol)


def _without_checksums(folder: Path) -> Path:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        return saved(folder / "model.pt")
    finally:
        torch.serialization.set_crc32_options(before)


def _safetensors(**more: tuple[str, list[int], bytes]) -> Callable[[Path], Path]:
    """A healthy file, and other tensors as (dtype, shape, bytes)."""

    def make(folder: Path) -> Path:
        entries = {name: ("F32", list(t.shape), t.numpy().tobytes()) for name, t in gate_tensors().items()}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, (dtype, shape, content) in {**entries, **more}.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        return safetensors(folder / "model.safetensors", json.dumps(header).encode() + b"   ", data)

    return make


def _odd_entries() -> dict[str, tuple[str, list[int], bytes]]:
    return {
        "none": ("F32", [0, 2**60], b""),
        "number": ("I64", [], bytes(8)),
        "truths": ("BOOL", [3], b"\x01\0\x01"),
        "eighths": ("F8_E4M3", [4], bytes(4)),
        "scales": ("F8_E8M0", [4], bytes([127] * 4)),
        "fourths": ("F4", [2, 4], bytes(4)),
        "sixths": ("F6_E2M3", [4], bytes(3)),
        "halves": ("F16", [2], bytes(4)),
        "brains": ("BF16", [2], bytes(4)),
        "pairs": ("C64", [1], bytes(8)),
        "mask": ("F32", [2], struct.pack("<2f", 0, 0)),
    }


def _with(**more: Any) -> dict[str, Any]:
    return {**gate_tensors(), **more}


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    tensors = gate_tensors()
    return {**tensors, name: change(tensors[name])}


def _renamed(name: str) -> dict[str, Tensor]:
    return {key.replace("layers", f"layers{name}"): value for key, value in gate_tensors().items()}


def _meta() -> dict[str, Tensor]:
    return _changed(f"{LAYER}.fc2.weight", lambda tensor: tensor.to("meta"))


def _views() -> dict[str, Any]:
    base = torch.arange(24.0)
    base_with_garbage = torch.full((64,), torch.nan)
    base_with_garbage[:8] = 1.0
    return _with(
        first=base[:12].view(3, 4),
        second=base[12:],
        turned=base.view(4, 6).t(),
        stepped=base[::3],
        stepped_twice=base.view(4, 6)[::2, ::3],
        expanded=torch.ones(1).expand(2**40),
        overlapping=base.as_strided((20, 5), (1, 1)),
        sliced=base_with_garbage[:8],
    )


def _trained() -> dict[str, Any]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {
        "model": {f"_orig_mod.module.{name}": tensor for name, tensor in gate_tensors().items()},
        "optimizer": optimizer.state_dict(),
        "rng": [torch.get_rng_state(), numpy.random.get_state()],
        "args": argparse.Namespace(lr=0.1, path=Path("a")),
        "best": numpy.float64(0.5),
        "history": defaultdict(list, loss=[1.0, 2.0]),
        "torch": torch.__version__,
        "step": 7,
    }


def _looping() -> dict[str, Any]:
    made: dict[str, Any] = {"model": gate_tensors()}
    made["self"] = made
    return made


_HEALTHY: dict[str, Callable[[], Any]] = {
    "plain": gate_tensors,
    "parameters": lambda: {name: nn.Parameter(tensor) for name, tensor in gate_tensors().items()},
    "ordered": lambda: OrderedDict(gate_tensors()),
    "nested": lambda: {"state_dict": {"model": {f"module.{name}": t for name, t in gate_tensors().items()}}},
    "in-a-list": lambda: [{"model": gate_tensors()}, 3],
    "that-holds-itself": _looping,
    "training": _trained,
    "views": _views,
    "half": lambda: {name: tensor.half() for name, tensor in gate_tensors().items()},
    "brain": lambda: {name: tensor.bfloat16() for name, tensor in gate_tensors().items()},
    "double": lambda: {name: tensor.double() for name, tensor in gate_tensors().items()},
    "eighths": lambda: {name: tensor.to(torch.float8_e4m3fn) for name, tensor in gate_tensors().items()},
    "odd-dtypes": lambda: _with(
        **{
            str(dtype): torch.zeros(4, dtype=dtype)
            for dtype in (
                *(torch.float8_e5m2, torch.float8_e4m3fnuz, torch.uint16, torch.uint32, torch.uint64, torch.complex64),
                *(torch.complex128, torch.int8, torch.bool, torch.complex32),
            )
        }
    ),
    "quantised": lambda: _with(q=torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8)),
    "quantised-per-channel": lambda: _with(
        q=torch.quantize_per_channel(torch.randn(3, 4), torch.ones(3), torch.zeros(3), 0, torch.qint8)
    ),
    "sparse": lambda: _with(coo=torch.eye(3).to_sparse(), csr=torch.eye(3).to_sparse_csr()),
    "nothing-in-it": lambda: _with(empty=torch.empty(0, 7), none=torch.empty(0), number=torch.tensor(3.0)),
    "turned-gate": lambda: _changed(f"{LAYER}.fc2.weight", lambda tensor: tensor.t().contiguous().t()),
    "mask": lambda: _with(mask=torch.full((8, 8), -torch.inf).triu(1)),
    "mask-of-few": lambda: _with(suppressed=torch.zeros(1000).index_fill(0, torch.tensor([3, 9]), -torch.inf)),
    "slopes-and-mask": lambda: _with(
        alibi=torch.arange(64.0).view(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -torch.inf)
    ),
    "extremes": lambda: _with(
        best=torch.tensor(torch.inf), low=torch.full((4,), torch.inf), high=torch.full((4,), -torch.inf)
    ),
}

_FAULTY: dict[str, Callable[[], Any]] = {
    "nan-in-the-gate": lambda: _changed(
        f"{LAYER}.fc2.weight", lambda tensor: tensor.index_fill(0, torch.tensor([1]), torch.nan)
    ),
    "nan-in-the-bias": lambda: _changed(f"{LAYER}.fc2.bias", lambda tensor: tensor + torch.nan),
    "minus-inf-in-the-gate": lambda: _changed(
        f"{LAYER}.fc1.weight", lambda tensor: tensor.index_fill(0, torch.tensor([1]), -torch.inf)
    ),
    "minus-inf-in-the-bias": lambda: _changed(
        f"{LAYER}.fc2.bias", lambda tensor: tensor.index_fill(0, torch.tensor([1]), -torch.inf)
    ),
    "nan-elsewhere": lambda: _with(w=torch.tensor([1.0, torch.nan])),
    "inf-elsewhere": lambda: _with(w=torch.tensor([1.0, 2.0, torch.inf])),
    "minus-inf-elsewhere": lambda: _with(w=torch.tensor([1.0, -torch.inf])),
    "minus-inf-in-a-matrix": lambda: _changed(
        "layers.0.attn.q_proj.weight", lambda tensor: tensor.masked_fill(tensor > 0.6, -torch.inf)
    ),
    "nan-at-the-end-of-many": lambda: _with(w=torch.cat([torch.zeros(3_000_000), torch.tensor([torch.nan])])),
    "nan-in-a-column": lambda: _with(w=torch.ones(6, 8).index_fill(1, torch.tensor([0]), torch.nan)[:, :2]),
    "half": lambda: _with(w=torch.tensor([70000.0]).repeat(3).half().index_fill(0, torch.tensor([0]), 1.0)),
    "brain": lambda: _with(w=torch.tensor([1.0, torch.nan]).bfloat16()),
    "eighth": lambda: _with(w=torch.tensor([1.0, torch.nan]).to(torch.float8_e4m3fn)),
    "double": lambda: _with(w=torch.tensor([1.0, torch.nan]).double()),
    "complex": lambda: _with(w=torch.tensor([1.0, complex(0, torch.nan)])),
    "in-an-optimizer": lambda: _with(optimizer={"state": {0: {"exp_avg": torch.tensor([1.0, torch.nan])}}}),
    "in-a-sparse-one": lambda: _with(w=torch.tensor([0.0, torch.nan]).to_sparse()),
}
