"""From a path to the contents of a checkpoint, whichever of the kinds that are read it is."""

import os
from contextlib import ExitStack
from pathlib import Path

from nsa_doctor.artifacts.checkpoint import archive, sharded
from nsa_doctor.artifacts.checkpoint.contents import Contents
from nsa_doctor.artifacts.checkpoint.distributed import METADATA, read_distributed
from nsa_doctor.artifacts.checkpoint.fault import FaultError, quoted
from nsa_doctor.artifacts.checkpoint.foreign import is_pickle, name_suffix, refuse
from nsa_doctor.artifacts.checkpoint.limits import MOST_HEADER, Deadline
from nsa_doctor.artifacts.checkpoint.manifested import MANIFEST, read_manifested
from nsa_doctor.artifacts.checkpoint.safetensors_file import SUFFIX, header_length, read_safetensors
from nsa_doctor.artifacts.checkpoint.source import Source, kind_of, opened
from nsa_doctor.artifacts.checkpoint.torch_archive import read_torch_archive

_USUAL = ("model.safetensors", "pytorch_model.bin", "consolidated.safetensors", "consolidated.00.pth")
_SUFFIXES = (SUFFIX, ".pt", ".pth", ".ckpt", ".bin")
_MOST_NAMES = 10_000
_PART = ".distcp"


def open_checkpoint(path: str, stack: ExitStack, deadline: Deadline) -> Contents:
    """The contents of the file or folder at that path; its files stay open as long as the stack."""
    name = quoted(path)
    if kind_of(path, name) == "folder":
        return _folder(Path(path), name, stack, deadline)
    return _open_file(path, name, stack, deadline)


def _open_file(path: str, name: str, stack: ExitStack, deadline: Deadline) -> Contents:
    source = stack.enter_context(opened(path, name))
    if path.endswith(sharded.SUFFIX):
        return sharded.read_sharded(source, Path(path).parent, stack, lambda part: _file(part, deadline))
    if os.path.basename(path) == METADATA:
        return _distributed(source, Path(path).parent, stack, deadline)
    if path.endswith(_PART):
        raise FaultError("irregular", f"{name} is one part of a distributed checkpoint; give the folder that it is in")
    return _file(source, deadline)


def _file(source: Source, deadline: Deadline) -> Contents:
    if not source.num_bytes:
        raise FaultError("empty", f"{source.name} is empty: nothing was written to it; save the checkpoint again")
    head = source.read(0, min(16, source.num_bytes))
    if head.startswith(archive.MAGIC) or head.startswith(b"PK\x05\x06"):
        return read_torch_archive(source, deadline)
    if _is_safetensors(source, head, deadline):
        return read_safetensors(source, deadline)
    refuse(source, deadline)


def _is_safetensors(source: Source, head: bytes, deadline: Deadline) -> bool:
    """By the brace that begins its header; by its name where that is missing and the file is no text and no pickle."""
    if head[8:9] == b"{" and header_length(head) <= MOST_HEADER:
        return True
    if is_pickle(source, deadline):
        return False
    is_text = all(ord(" ") <= byte <= ord("~") or chr(byte).isspace() for byte in head)
    return len(head) >= 8 and any(head) and not is_text and name_suffix(source.name) == SUFFIX


def _distributed(metadata: Source, folder: Path, stack: ExitStack, deadline: Deadline) -> Contents:
    def read(part: Source) -> Contents:
        return read_torch_archive(part, deadline)

    return read_distributed(metadata, folder, stack, read, deadline)


def _folder(folder: Path, name: str, stack: ExitStack, deadline: Deadline) -> Contents:
    """What a folder holds: a distributed checkpoint, the files of an index, or one file that is a checkpoint."""
    names = _names(folder, name)
    if METADATA in names:
        metadata = stack.enter_context(opened(str(folder / METADATA), f"{name}: {METADATA}"))
        return _distributed(metadata, folder, stack, deadline)
    if MANIFEST in names:
        manifest = stack.enter_context(opened(str(folder / MANIFEST), f"{name}: {MANIFEST}"))
        contents = read_manifested(manifest, folder, stack, lambda part: _file(part, deadline))
        if contents is not None:
            return contents
    if any(each.endswith(_PART) for each in names):
        raise FaultError(
            "incomplete",
            f"{name} is incomplete and cannot be read: its {METADATA} is missing, which is written last; save it again",
        )
    indices = [each for each in names if each.endswith(sharded.SUFFIX)]
    known = [each for each in names if each.lower().endswith(_SUFFIXES)]
    chosen = indices if len(indices) == 1 else [each for each in _USUAL if each in known][:1] or known
    if len(chosen) == 1:
        path = str(folder / chosen[0])
        return _open_file(path, quoted(path), stack, deadline)
    inner = [each for each in names if _may_hold_one(folder / each)]
    candidates = [quoted(each) for each in [*indices, *known, *inner][:3]]
    if candidates:
        listing = f"it has {', '.join(candidates)}{' and others' if len(indices + known + inner) > 3 else ''}; give one"
        raise FaultError("irregular", f"{name} is a folder with no one checkpoint: {listing}")
    raise FaultError("irregular", f"{name} is a folder without a checkpoint; give the path of the checkpoint itself")


def _may_hold_one(folder: Path) -> bool:
    """Whether a checkpoint seems to lie in that folder, as in one that DeepSpeed names for its step."""
    if not os.path.isdir(folder) or not os.access(folder, os.R_OK | os.X_OK):
        return False
    names = _names(folder, quoted(str(folder)))
    return any(each in (METADATA, MANIFEST) or each.lower().endswith((*_SUFFIXES, sharded.SUFFIX)) for each in names)


def _names(folder: Path, name: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            names = [entry.name for _, entry in zip(range(_MOST_NAMES), found, strict=False)]
    except OSError as error:
        raise FaultError(
            "denied", f"{name} cannot be listed: {error.strerror}; ask for permission to read it"
        ) from None
    return sorted(names)
