"""Floors of throughput: what a device has to reach, read from a file, and whether measured times can decide."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsa_doctor.core.shipped import shipped
from nsa_doctor.core.spread import relative_spread
from nsa_doctor.core.writing import shown

Quantity = Literal["train_tokens_per_second", "forward_tokens_per_second", "decode_tokens_per_second", "slowdown"]
_QUANTITIES = ("train_tokens_per_second", "forward_tokens_per_second", "decode_tokens_per_second", "slowdown")
_ENDLESS = 1e18  # more than anything reaches
_KEYS = {"quantity", "seq", "least", "most", "config", "because"}


class FloorsError(ValueError):
    """A file of floors that cannot be used; one sentence says why."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """One limit at one length (0: at each): tokens per second at `least`, or a slowdown at `most`, and why.

    `slowdown` is how many times as long as plain dense attention of the same width a training pass takes. `config`
    names the configuration of nsa it is for; empty for every subject.
    """

    quantity: Quantity
    limit: float
    because: str
    seq: int = 0
    config: str = ""


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The floors of one kind of device; `name` is what `--floors` takes, `device` is part of its name, or cpu."""

    name: str
    device: str
    floors: tuple[Floor, ...]


def load_floors(source: str) -> Floors:
    """Read a file, or a built-in one by its name; raises FloorsError."""
    from nsa.plain_yaml import read_plain_yaml

    known = shipped("throughput")
    path = known.get(source, Path(source))
    try:
        document = read_plain_yaml(path)
    except ValueError as error:
        raise FloorsError(f"{shown(path)}: {error}; built in are {', '.join(known)}") from error
    if not isinstance(document, dict) or set(document) != {"device", "floors"} or not document["floors"]:
        raise FloorsError(f"{path}: must have the keys device and floors, and floors in it")
    if not isinstance(document["floors"], list):
        raise FloorsError(f"{path}: floors must be a list")
    return Floors(
        name=source,
        device=str(document["device"]),
        floors=tuple(_floor(path, entry) for entry in document["floors"]),
    )


def floors_for(device_name: str, device: str) -> Floors | None:
    """The built-in floors of this device, if there are any."""
    for name in shipped("throughput"):
        floors = load_floors(name)
        if floors.device == device or (device != "cpu" and floors.device.lower() in device_name.lower()):
            return floors
    return None


@dataclass(frozen=True)
class FloorVerdict:
    """Whether samples keep a floor; None where their spread reaches over it."""

    keeps: bool | None
    measured: float
    spread: float


def judge(samples: Sequence[float], floor: Floor) -> FloorVerdict:
    """Hold samples against a floor, which must lie further from their median than half of them spread."""
    median, spread = statistics.median(samples), relative_spread(samples)
    keeps = median <= floor.limit if floor.quantity == "slowdown" else median >= floor.limit
    distance = abs(median - floor.limit) / median
    return FloorVerdict(keeps if distance > spread else None, median, spread)


def _floor(path: Path, entry: Any) -> Floor:
    if not isinstance(entry, dict) or not set(entry) <= _KEYS:
        raise FloorsError(f"{path}: a floor may have {', '.join(sorted(_KEYS))}, got {entry!r}")
    quantity, bound = entry.get("quantity"), "most" if entry.get("quantity") == "slowdown" else "least"
    if quantity not in _QUANTITIES:
        raise FloorsError(f"{path}: quantity must be one of {', '.join(_QUANTITIES)}, got {quantity!r}")
    limit, seq = entry.get(bound), entry.get("seq", 0)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < _ENDLESS:
        raise FloorsError(f"{path}: {quantity} needs `{bound}`, a finite number above 0, got {limit!r}")
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < _ENDLESS:
        raise FloorsError(f"{path}: seq must be a whole number, got {seq!r}")
    because = entry.get("because")
    if not isinstance(because, str) or not because.strip():
        raise FloorsError(f"{path}: a floor says why: `because` is missing for {quantity}")
    return Floor(quantity=quantity, limit=float(limit), because=because, seq=seq, config=str(entry.get("config", "")))
