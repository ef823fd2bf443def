"""Checkpoints written for the occasion, healthy but for what a check plants, and read back as any other."""

import json
import math
import random
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject

Values = tuple[tuple[int, ...], tuple[float, ...]]
GATE = "layers.0.attn.gate"
_SIZE, _NUM_BRANCHES = 8, 3


def healthy() -> dict[str, Values]:
    """An attention layer with a gate of three branches, small and random."""
    numbers = random.Random(0)  # noqa: S311 (no secret)

    def drawn(*shape: int, std: float = 0.3) -> Values:
        return shape, tuple(numbers.gauss(0, std) for _ in range(math.prod(shape)))

    return {
        "layers.0.attn.out_proj.weight": drawn(_SIZE, _SIZE),
        f"{GATE}.fc1.weight": drawn(_SIZE, _SIZE),
        f"{GATE}.fc1.bias": drawn(_SIZE),
        f"{GATE}.fc2.weight": drawn(_NUM_BRANCHES, _SIZE),
        f"{GATE}.fc2.bias": filled(_NUM_BRANCHES),
    }


def filled(*shape: int, value: float = 0.0) -> Values:
    """The same value everywhere."""
    return shape, (value,) * math.prod(shape)


def holding(subject: CheckpointSubject, *files: Mapping[str, Values]) -> CheckpointSubject:
    """The subject with files that hold these tensors in place of its own: the last, compared with the one before it."""
    return _written(subject, [safetensors(tensors) for tensors in files], "safetensors")


def consisting_of(subject: CheckpointSubject, content: bytes, suffix: str) -> CheckpointSubject:
    """The subject with a file of just these bytes in place of its own."""
    return _written(subject, [content], suffix)


def safetensors(tensors: Mapping[str, Values]) -> bytes:
    """A safetensors file."""
    header: dict[str, object] = {}
    data = b""
    for name, (shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _written(subject: CheckpointSubject, contents: list[bytes], suffix: str) -> CheckpointSubject:
    return replace(subject, checkpoint=_reading(contents, suffix))


def _reading(contents: list[bytes], suffix: str) -> Callable[[], Reading]:
    def read() -> Reading:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"step_{number}.{suffix}" for number in range(len(contents))]
            for path, content in zip(paths, contents, strict=True):
                path.write_bytes(content)
            since = str(paths[-2]) if len(paths) > 1 else None
            return read_checkpoint(str(paths[-1]), ReadRequest(), since)

    return read
