"""What `torch.save` wrote: an archive with a pickle that describes tensors, and an entry for each storage."""

from collections.abc import Mapping

from nsa_doctor.artifacts.checkpoint import archive
from nsa_doctor.artifacts.checkpoint.contents import Contents, Summed
from nsa_doctor.artifacts.checkpoint.described_tensors import described_tensors
from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, quoted, too_much, unsafe
from nsa_doctor.artifacts.checkpoint.limits import MOST_PICKLE, Deadline
from nsa_doctor.artifacts.checkpoint.pickles import read_pickle
from nsa_doctor.artifacts.checkpoint.rebuilt_tensors import Storages
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.symbols import HOLDS_DATA, is_plain

_SMALL = 4096
_LAST_VERSION = 10
_HIDING = ((archive.MAGIC, "another archive"), (b"\x80", "a pickle"), (b"\x1f\x8b", "a compressed file"))
_SAVE = "save the state_dict with torch.save or as safetensors"


def read_torch_archive(source: Source, deadline: Deadline, kind: str = "torch archive") -> Contents:
    """Every tensor of the file; a FaultError when it is not what torch.save writes, or asks for code."""
    entries = archive.read_directory(source)
    root = _root(source, entries)
    _check_entries(source, root, entries)
    contents = Contents(kind=kind, files=[source])
    asked: set[str] = set()

    def is_allowed(name: str) -> bool:
        if name in HOLDS_DATA:
            asked.add(name)
        return is_plain(name)

    def window(entry: archive.Entry) -> Source:
        return source.window(entry.start, entry.num_bytes, f"{source.name}: {entry.name}")

    data = _read(source, entries[f"{root}data.pkl"], MOST_PICKLE)
    described, length = read_pickle(data, source.name, is_allowed, deadline)  # what is unsafe is said before all else
    _check_version(source, entries.get(f"{root}version"))
    _check_notes(source, root, entries)
    if length != len(data):
        raise corrupt(source.name, f"{len(data) - length} bytes follow its pickle")
    folder = f"{root}data/"
    storages = Storages(
        name=source.name,
        windows={
            name.removeprefix(folder): window(entry) for name, entry in entries.items() if name.startswith(folder)
        },
        is_swapped=_is_swapped(source, entries.get(f"{root}byteorder")),
    )
    contents.tensors += described_tensors(described, storages, contents.settings, deadline)
    if asked:
        names = ", ".join(sorted(asked)[:3]) + (" and others" if len(asked) > 3 else "")
        contents.notes.append(
            f"it also carries {names}, which hold data but make torch.load(weights_only=True) refuse the file"
        )
    if any(entry.crc for entry in entries.values()):
        contents.summed += [Summed(name=each.name, storage=window(each), crc=each.crc) for each in entries.values()]
    else:
        contents.notes.append("it was saved without checksums: bytes that changed since cannot be detected")
    return contents


def _read(source: Source, entry: archive.Entry, most: int) -> bytes:
    """The bytes of a small entry."""
    if entry.num_bytes > most:
        raise too_much(source.name, f"{entry.num_bytes:,} bytes of {quoted(entry.name)}", most)
    return source.read(entry.start, entry.num_bytes)


def _is_swapped(source: Source, entry: archive.Entry | None) -> bool:
    order = b"little" if entry is None else _read(source, entry, _SMALL)
    if order not in (b"little", b"big"):
        raise corrupt(source.name, f"its byte order is {quoted(repr(order[:20]))}")
    return order == b"big"


def _check_version(source: Source, entry: archive.Entry | None) -> None:
    """Refuse what torch refuses: an archive that does not say of which version it is."""
    said = b"" if entry is None else _read(source, entry, _SMALL).strip()
    if not (said.isdigit() and int(said) <= _LAST_VERSION):
        raise corrupt(source.name, "it has no version that torch knows, and torch does not load it without")


def _check_notes(source: Source, root: str, entries: Mapping[str, archive.Entry]) -> None:
    """Refuse what torch refuses: notes of newer versions that are not what they should be."""
    alignment, made = (entries.get(f"{root}{name}") for name in (".storage_alignment", ".data/serialization_id"))
    if alignment is not None and not _read(source, alignment, _SMALL).strip().isdigit():
        raise corrupt(source.name, "the alignment of its storages is no whole number, and torch does not load it")
    if made is not None and not _is_text(_read(source, made, _SMALL)):
        raise corrupt(source.name, "the id that it was given when it was saved is no text, and torch does not load it")


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _root(source: Source, entries: Mapping[str, archive.Entry]) -> str:
    """The folder in the archive that holds everything."""
    roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(roots) == 1:
        return roots[0]
    for entry in entries.values():
        if entry.name.endswith((".pkl", ".pt", ".pth", ".zip", ".bin")) or _hidden(source, entry):
            what = f"it is an archive that torch.save never writes, and {quoted(entry.name)} in it may be code"
            raise unsafe(source.name, what)
    if any(name.endswith((".npy", "/.zgroup")) for name in entries):
        raise FaultError("foreign", f"{source.name} is an archive of numpy arrays, not a checkpoint; {_SAVE}")
    raise FaultError("foreign", f"{source.name} is a zip archive, but not one that torch.save writes; {_SAVE}")


def _check_entries(source: Source, root: str, entries: Mapping[str, archive.Entry]) -> None:
    """Refuse a program, and whatever else torch.save does not put there."""
    short = {name.removeprefix(root) for name in entries}
    if "constants.pkl" in short or any(name.startswith("code/") for name in short):
        what = "it is a TorchScript program, which runs when it is loaded"
        raise unsafe(source.name, what, "save the state_dict of the module in its place, best as safetensors")
    for name, entry in entries.items():
        hidden = "" if _is_storage(name, root) else _hidden(source, entry)
        if not name.startswith(root) or not _is_usual(name.removeprefix(root), entry, hidden):
            what = f"it hides {hidden or 'something'} that torch.save never writes, {quoted(name)}"
            raise unsafe(source.name, what)


def _is_storage(name: str, root: str) -> bool:
    return name.startswith(f"{root}data/") and name.removeprefix(f"{root}data/").isalnum()


def _is_usual(name: str, entry: archive.Entry, hidden: str) -> bool:
    if name in ("data.pkl", "version", "byteorder") or _is_storage(name, ""):
        return True
    return name.startswith(".") and entry.num_bytes <= _SMALL and not hidden  # what newer versions of torch note down


def _hidden(source: Source, entry: archive.Entry) -> str:
    """What an entry looks like that should not be there; nothing when it is plain."""
    head = source.read(entry.start, min(4, entry.num_bytes))
    return next((what for magic, what in _HIDING if head.startswith(magic)), "")
