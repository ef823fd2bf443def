"""Files of weights whose end is missing are reported without loading them, and those being written are left alone."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nsa_doctor.artifacts.training_run.folder import fault_of

WEIGHTS = {"weight": torch.zeros(100), "bias": torch.ones(10)}


def aged(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def halved(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return aged(path)


@pytest.fixture(params=["safetensors", "pt"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "step_10" / f"model.{request.param}"
    path.parent.mkdir()
    if request.param == "pt":
        torch.save(WEIGHTS, path)
    else:
        save_file(WEIGHTS, path)
    return path


def test_a_whole_file_is_sound(written: Path):
    aged(written)
    assert (fault_of(written), fault_of(written.parent)) == ("", "")


def test_half_a_file_is_reported_with_its_bytes(written: Path):
    size = halved(written).stat().st_size
    assert fault_of(written).startswith(f"has {size:,} bytes")
    assert fault_of(written.parent).startswith(f"holds {written.name}, which has {size:,} bytes")


def test_a_file_that_is_being_written_is_left_alone(written: Path):
    halved(written)
    os.utime(written)
    assert (fault_of(written), fault_of(written.parent)) == ("", "")


def test_a_pickle_of_old_has_no_length_to_tell(tmp_path: Path):
    path = tmp_path / "model.pt"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False)
    assert fault_of(halved(path)) == ""


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b"\xff", b'{"a": {"data_offsets": ["0", "4"]}}', b'{"a": {"data_offsets": 1}}']
)
def test_a_header_that_is_none_tells_nothing(tmp_path: Path, header: bytes):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert fault_of(aged(path)) == ""


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"model.safetensors": 3}, ""),
        ({"model.safetensors": 4}, "holds model.safetensors of 3 bytes, and 4 were written"),
        ({"model.safetensors": 3, "rng.safetensors": 1}, "lacks rng.safetensors"),
        ({"../outside": 1}, ""),
    ],
)
def test_the_manifest_says_how_much_was_written(tmp_path: Path, sizes: dict[str, int], fault: str):
    folder = tmp_path / "checkpoints" / "step_00000010"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"abc")
    (folder / "state.json").write_text("{}")
    files = {name: {"bytes": size} for name, size in sizes.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    assert fault_of(folder) == fault
