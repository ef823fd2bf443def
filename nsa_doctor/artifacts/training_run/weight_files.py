"""Whether files of weights are as long as they say themselves, or the manifest beside them says; nothing is loaded."""

import json
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

_LARGEST_TEXT = 1 << 20
_LENGTH_BYTES = 8
_SECONDS_TO_WRITE_ON = 10.0
_ARCHIVE = b"PK\x03\x04"


def cut_short(path: Path) -> str:
    """How a safetensors file or a torch archive shows that its end is missing; nothing while it is being written."""
    size = path.stat().st_size
    if time.time() - path.stat().st_mtime < _SECONDS_TO_WRITE_ON:
        return ""
    if path.suffix == ".safetensors":
        wanted = _expected_bytes(path, size)
        return f"has {size:,} bytes of {wanted:,}" if wanted is not None and size < wanted else ""
    with path.open("rb") as file:
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
    return f"has {size:,} bytes and no end" if is_archive and not zipfile.is_zipfile(path) else ""


def differs_from_manifest(folder: Path) -> str:
    """The first file of a checkpoint of nsa's that is missing or of another size than its manifest tells."""
    for name, wanted in _listed(folder / "manifest.json"):
        path = folder / name
        if not path.exists():
            return f"lacks {name}"
        if path.stat().st_size != wanted:
            return f"holds {name} of {path.stat().st_size:,} bytes, and {wanted:,} were written"
    return ""


def _expected_bytes(path: Path, size: int) -> int | None:
    """Where the last tensor of a safetensors file ends; None where it does not say."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _LARGEST_TEXT:
            return None
        if _LENGTH_BYTES + length > size:
            return _LENGTH_BYTES + length
        header = _object(file.read(length))
    places = [each.get("data_offsets") for name, each in header.items() if isinstance(each, dict)]
    ends = [place[1] for place in places if isinstance(place, list) and len(place) == 2 and type(place[1]) is int]
    return _LENGTH_BYTES + length + max(ends, default=0)


def _listed(manifest: Path) -> Sequence[tuple[str, int]]:
    if not manifest.is_file() or manifest.stat().st_size > _LARGEST_TEXT:
        return ()
    files = _object(manifest.read_bytes()).get("files")
    entries = files.items() if isinstance(files, dict) else ()
    sizes = [
        (name, facts.get("bytes")) for name, facts in entries if isinstance(facts, dict) and Path(name).name == name
    ]
    return [(name, size) for name, size in sizes if type(size) is int]


def _object(raw: bytes) -> dict[str, object]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
