"""Checkpoints of several files: sharded ones with an index, and those of torch.distributed.checkpoint."""

import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from nsa.train.checkpoint import Snapshot, write_checkpoint
from tests.hostile.case import LAYER, Calls, Case, archive, command, gate_tensors, pickled, safetensors, saved

_METADATA = ".metadata"


def cases() -> Iterator[Case]:
    for name, (make, kinds, says) in _SHARDED.items():
        yield Case(f"sharded-{name}", make, kinds, says=says)
    for name, (change, kinds, says) in _DISTRIBUTED.items():
        yield Case(f"distributed-{name}", _distributed(change), kinds, says=says)
    for name, (change, kinds, says) in _TRAINED.items():
        yield Case(f"trained-{name}", _trained(change), kinds, says=says)
    yield Case("distributed-of-code-alone", _code_alone, ("unsafe",), says="'posix.system'")
    yield Case("deepspeed", _of_deepspeed, ("irregular",), says="it has 'global_step10'; give one")
    yield Case("distributed-of-lists", _nonsense, ("corrupt",), says="does not say what is stored where")


def _index(folder: Path, files: dict[str, str], text: str | None = None) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}) if text is None else text)
    return path


def _shards(folder: Path) -> dict[str, str]:
    """A healthy checkpoint in two files, and where each tensor is."""
    names = list(gate_tensors())
    files = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        own = {name: gate_tensors()[name] for name in names if files[name] == file}
        data = b"".join(tensor.numpy().tobytes() for tensor in own.values())
        header, place = {}, 0
        for name, tensor in own.items():
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, place + tensor.nbytes]}
            place += tensor.nbytes
        safetensors(folder / file, header, data)
    return files


def _healthy(folder: Path) -> Path:
    return _index(folder, _shards(folder))


def _leading(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "inner").mkdir()
        saved(folder / "model.safetensors")
        return _index(folder / "inner", {"w": target.format(folder=folder)})

    return make


def _with_code(folder: Path) -> Path:
    archive(folder / "pytorch_model-00001-of-00001.bin", pickled(Calls(os.system, command(folder))))
    return _index(folder, {"w": "pytorch_model-00001-of-00001.bin"})


def _missing(folder: Path) -> Path:
    files = _shards(folder)
    (folder / max(files.values())).unlink()
    return _index(folder, files)


def _misplaced(folder: Path) -> Path:
    return _index(folder, {**_shards(folder), "gone": "model-00001-of-00002.safetensors"})


def _twice(folder: Path) -> Path:
    files = _shards(folder)
    (folder / "again.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    return _index(folder, {**files, "other": "again.safetensors"})


def _in_itself(folder: Path) -> Path:
    return _index(folder, {"w": "model.safetensors.index.json"})


def _in_pickles(folder: Path) -> Path:
    saved(folder / "pytorch_model-00001-of-00001.bin")
    path = folder / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": dict.fromkeys(gate_tensors(), "pytorch_model-00001-of-00001.bin")}))
    return folder


_OUTSIDE = (("unsafe",), "not in its folder")
_SHARDED: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], str]] = {
    "healthy": (_healthy, (), LAYER),
    "given-as-a-folder": (lambda folder: _healthy(folder).parent, (), LAYER),
    "of-pickles": (_in_pickles, (), LAYER),
    "outside": (_leading("../model.safetensors"), *_OUTSIDE),
    "outside-by-a-whole-path": (_leading("{folder}/model.safetensors"), *_OUTSIDE),
    "outside-by-a-backslash": (_leading("..\\model.safetensors"), *_OUTSIDE),
    "the-folder-itself": (_leading("."), *_OUTSIDE),
    "with-a-nul": (_leading("a\0b"), *_OUTSIDE),
    "with-code": (_with_code, ("unsafe",), "'posix.system'"),
    "in-itself": (_in_itself, ("foreign",), "is text"),
    "file-missing": (_missing, ("incomplete",), "is not there"),
    "tensor-missing": (_misplaced, ("incomplete",), "'gone' is not in"),
    "tensor-twice": (_twice, ("corrupt",), "and in"),
    "no-json": (lambda folder: _index(folder, {}, "{'a': 1}"), ("corrupt",), "is no JSON"),
    "names-no-text": (lambda folder: _index(folder, {}, '{"weight_map": {"w": 3}}'), ("foreign",), "no weight_map"),
    "many-files": (
        lambda folder: _index(folder, {str(index): f"{index}.bin" for index in range(20_000)}),
        ("limit",),
        "20,000 files",
    ),
}

Change = Callable[[Path], Any]


def _distributed(change: Change) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "step_1"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process alone
            torch.distributed.checkpoint.save({"model": gate_tensors(), "step": 1}, checkpoint_id=path, no_dist=True)
        change(path)
        return path

    return make


def _metadata(path: Path, change: Callable[[Metadata], Any]) -> None:
    metadata = pickle.loads((path / _METADATA).read_bytes())
    metadata = change(metadata) or metadata
    (path / _METADATA).write_bytes(pickle.dumps(metadata))


def _infos(path: Path, **changes: Any) -> None:
    def change(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            for name, value in changes.items():
                setattr(info, name, value)

    _metadata(path, change)


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.distcp"))


def _hide_code(path: Path) -> None:
    """In the planner's data, which nobody needs for reading tensors."""

    def change(metadata: Metadata) -> None:
        metadata.planner_data = {"x": Calls(os.system, command(path.parent))}

    _metadata(path, change)


def _hide_code_in_bytes(path: Path) -> None:
    """In an entry that is no tensor."""
    evil = archive(path / "evil.distcp", pickled(Calls(os.system, command(path.parent))))

    def change(metadata: Metadata) -> None:
        index = next(iter(metadata.storage_data))
        info = metadata.storage_data[index]
        key, place = type(index)("evil"), type(info)("evil.distcp", 0, evil.stat().st_size)
        metadata.state_dict_metadata["evil"] = BytesStorageMetadata()
        metadata.storage_data[key] = place

    _metadata(path, change)


def _hide_code_in_a_piece(path: Path) -> None:
    evil = archive(path / "evil.distcp", pickled(Calls(os.system, command(path.parent))))
    _infos(path, relative_path="evil.distcp", offset=0, length=evil.stat().st_size)


def _cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _shrink(metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata[f"model.{LAYER}.fc2.weight"]
    entry.size = torch.Size((1, 1))


def _forget(metadata: Metadata) -> None:
    metadata.storage_data = {}


def _drop_chunks(metadata: Metadata) -> None:
    metadata.state_dict_metadata[f"model.{LAYER}.fc2.weight"].chunks = []


_DISTRIBUTED: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "healthy": (lambda path: None, (), LAYER),
    "metadata-with-code": (_hide_code, ("unsafe",), "'posix.system'"),
    "bytes-with-code": (_hide_code_in_bytes, ("unsafe",), "'posix.system'"),
    "piece-with-code": (_hide_code_in_a_piece, ("unsafe",), "'posix.system'"),
    "outside": (lambda path: _infos(path, relative_path="../x.distcp"), *_OUTSIDE),
    "outside-by-a-whole-path": (lambda path: _infos(path, relative_path="/etc/passwd"), *_OUTSIDE),
    "place-beyond": (lambda path: _infos(path, offset=2**60), ("truncated",), "are spoken of"),
    "place-of-exabytes": (lambda path: _infos(path, length=2**60), ("truncated",), "are spoken of"),
    "place-negative": (lambda path: _infos(path, offset=-1), ("corrupt",), "makes no sense"),
    "place-of-another": (lambda path: _infos(path, offset=0), ("corrupt", "truncated"), ""),
    "compressed": (lambda path: _infos(path, transform_descriptors=["zstd"]), ("unsupported",), "compressed"),
    "piece-outside-of-the-whole": (lambda path: _metadata(path, _shrink), ("corrupt",), "lies outside of it"),
    "pieces-missing": (lambda path: _metadata(path, _drop_chunks), ("incomplete",), "0 values are stored"),
    "places-missing": (lambda path: _metadata(path, _forget), ("corrupt",), "does not say where"),
    "file-missing": (lambda path: _files(path)[0].unlink(), ("incomplete",), "is not there"),
    "file-cut-short": (lambda path: _cut(_files(path)[0], 2000), ("truncated",), "are spoken of"),
    "file-empty": (lambda path: _files(path)[0].write_bytes(b""), ("truncated",), "are spoken of"),
    "metadata-missing": (lambda path: (path / _METADATA).unlink(), ("incomplete",), "is missing"),
    "metadata-cut-short": (lambda path: _cut(path / _METADATA, 20), ("truncated",), "breaks off"),
    "metadata-empty": (lambda path: (path / _METADATA).write_bytes(b""), ("truncated",), "breaks off"),
    "metadata-a-folder": (
        lambda path: ((path / _METADATA).unlink(), (path / _METADATA).mkdir()),
        ("irregular",),
        "where a file should be",
    ),
}


def _trained(change: Change) -> Callable[[Path], Path]:
    """A checkpoint as nsa's own training writes it."""

    def make(folder: Path) -> Path:
        state = {"config": {"model": {"gate": "softmax", "gate_temperature": 1.0}}}
        tensors = {"w": torch.ones(2)}
        snapshot = Snapshot(step=3, model=gate_tensors(), optimizer=tensors, rng=tensors, state=state)
        path = write_checkpoint(folder, snapshot, keep_last=1)
        change(path)
        return path

    return make


def _turn_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((path / "manifest.json").read_text())
    change(document["files"])
    (path / "manifest.json").write_text(json.dumps(document))


def _lead_outside(files: dict[str, Any]) -> None:
    files["../model.safetensors"] = files.pop("model.safetensors")


_TRAINED: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "healthy": (lambda path: None, (), "softmax, as configured"),
    "byte-changed": (lambda path: _turn_a_bit(path / "model.safetensors"), ("crc",), "SHA-256"),
    "byte-of-the-optimizer-changed": (lambda path: _turn_a_bit(path / "optimizer.safetensors"), ("crc",), "SHA-256"),
    "file-missing": (lambda path: (path / "rng.safetensors").unlink(), ("incomplete",), "is not there"),
    "file-cut-short": (lambda path: _cut(path / "model.safetensors", 1), ("truncated",), "when it was written"),
    "file-a-fifo": (
        lambda path: ((path / "state.json").unlink(), os.mkfifo(path / "state.json")),
        ("irregular",),
        "a named pipe",
    ),
    "outside": (lambda path: _manifest(path, _lead_outside), *_OUTSIDE),
    "manifest-no-json": (lambda path: (path / "manifest.json").write_text("{"), ("corrupt",), "is no JSON"),
    "manifest-of-another": (lambda path: (path / "manifest.json").write_text('{"name": "app"}'), (), LAYER),
}


def _code_alone(folder: Path) -> Path:
    path = folder / "step_1"
    path.mkdir()
    (path / _METADATA).write_bytes(pickle.dumps(Calls(os.system, command(folder))))
    return path


def _of_deepspeed(folder: Path) -> Path:
    """Two of its files in the folder of a step, which `latest` names."""
    path = folder / "run"
    (path / "global_step10").mkdir(parents=True)
    (path / "latest").write_text("global_step10")
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        saved(path / "global_step10" / name, {"module": gate_tensors()})
    return path


def _nonsense(folder: Path) -> Path:
    path = folder / "step_1"
    path.mkdir()
    (path / _METADATA).write_bytes(pickle.dumps([1, 2]))
    return path
