"""A checkpoint in several files, with an index that says which tensor is in which."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.contents import Contents
from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, incomplete, quoted, too_much
from nsa_doctor.artifacts.checkpoint.json_text import read_json
from nsa_doctor.artifacts.checkpoint.limits import MOST_INDEX
from nsa_doctor.artifacts.checkpoint.neighbours import open_beside
from nsa_doctor.artifacts.checkpoint.source import Source

SUFFIX = ".index.json"


def read_sharded(index: Source, folder: Path, stack: ExitStack, read: Callable[[Source], Contents]) -> Contents:
    """The tensors of all files the index names, each read by `read`; the files stay open as long as the stack."""
    names = _names(index)
    contents = Contents(kind="sharded checkpoint", files=[index])
    kinds: dict[str, None] = {}
    seen: dict[str, str] = {}
    files = open_beside(index, folder, names.values(), stack)
    for file, source in files.items():
        part = read(source)
        contents.files += part.files
        contents.tensors += part.tensors
        contents.summed += part.summed
        contents.settings |= part.settings
        contents.notes += [note for note in part.notes if note not in contents.notes]
        kinds[part.kind] = None
        for tensor in part.tensors:
            if tensor.name in seen:
                both = f"{quoted(seen[tensor.name])} and in {quoted(file)}"
                raise corrupt(index.name, f"{quoted(tensor.name)} is in {both}")
            seen[tensor.name] = file
    for name, file in names.items():
        if seen.get(name) != file:
            raise incomplete(index.name, f"{quoted(name)} is not in {quoted(file)}")
    contents.kind = f"{', '.join(kinds)} in {len(files)} files"
    return contents


def _names(index: Source) -> dict[str, str]:
    """The file of each tensor."""
    if index.num_bytes > MOST_INDEX:
        raise too_much(index.name, f"{index.num_bytes:,} bytes", MOST_INDEX)
    names = read_json(index.read(0, index.num_bytes), index.name).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(file, str) for file in names.values()):
        raise FaultError(
            "foreign", f"{index.name} has no weight_map as the index of a checkpoint has; give the checkpoint"
        )
    return names
