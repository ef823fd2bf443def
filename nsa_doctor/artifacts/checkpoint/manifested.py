"""A folder that `python -m nsa.train` wrote: tensor files, a state, and a manifest with the SHA-256 of each."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.checkpoint.contents import Contents, Hashed, Stored
from nsa_doctor.artifacts.checkpoint.fault import cut_short, too_much
from nsa_doctor.artifacts.checkpoint.json_text import read_json
from nsa_doctor.artifacts.checkpoint.limits import MOST_INDEX
from nsa_doctor.artifacts.checkpoint.neighbours import open_beside
from nsa_doctor.artifacts.checkpoint.safetensors_file import SUFFIX
from nsa_doctor.artifacts.checkpoint.source import Source

MANIFEST = "manifest.json"
_STATE = "state.json"
_MODEL = "model"
_SETTINGS = ("gate", "gate_temperature")
_DEEPEST = 8


def read_manifested(
    manifest: Source, folder: Path, stack: ExitStack, read: Callable[[Source], Contents]
) -> Contents | None:
    """The tensors of every file the manifest lists, the model's under their own names; None where it lists none."""
    expected = _expected(manifest)
    if not expected:
        return None
    files = open_beside(manifest, folder, expected, stack)
    contents = Contents(kind="checkpoint of nsa.train", files=[manifest, *files.values()])
    for name, source in files.items():
        num_bytes, sha256 = expected[name]
        if source.num_bytes != num_bytes:
            what = f"it has {source.num_bytes:,} bytes, and had {num_bytes:,} when it was written"
            raise cut_short(source.name, what)
        contents.hashed.append(Hashed(source=source, sha256=sha256))
        if name.endswith(SUFFIX):
            prefix = "" if name == f"{_MODEL}{SUFFIX}" else f"{name.removesuffix(SUFFIX)}."
            part = read(source)
            contents.tensors += [
                replace(each, name=prefix + each.name) for each in part.tensors if isinstance(each, Stored)
            ]
        elif name == _STATE:
            contents.settings |= _settings(_document(source), _DEEPEST)
    return contents


def _expected(manifest: Source) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file; nothing where it is no such manifest."""
    listed = _document(manifest).get("files")
    if not isinstance(listed, dict):
        return {}
    found: dict[str, tuple[int, str]] = {}
    for name, facts in listed.items():
        size, sha256 = (facts.get("bytes"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if type(size) is not int or not isinstance(sha256, str):
            return {}
        found[name] = size, sha256
    return found if any(name.endswith(SUFFIX) for name in found) else {}


def _document(source: Source) -> dict[str, Any]:
    if source.num_bytes > MOST_INDEX:
        raise too_much(source.name, f"{source.num_bytes:,} bytes", MOST_INDEX)
    return read_json(source.read(0, source.num_bytes), source.name)


def _settings(document: Mapping[str, Any], deepest: int) -> dict[str, str | float]:
    """What the configuration in a state says of gates."""
    found: dict[str, str | float] = {}
    for key, value in document.items():
        if isinstance(value, dict) and deepest:
            found |= _settings(value, deepest - 1)
        elif key in _SETTINGS and type(value) in (str, float):
            found[key] = value
    return found
