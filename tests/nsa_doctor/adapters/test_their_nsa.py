"""A package of the user's is examined whatever its name, also one that we use ourselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nsa_doctor.conftest import ROOT

LAYER = """
import torch
from torch import nn
from {name}.parts.heads import heads


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))
"""
HEADS = "def heads(x):\n    return x.unflatten(-1, (2, 8)).transpose(1, 2)\n"


def write_package(folder: Path, name: str) -> None:
    parts = folder / name / "parts"
    parts.mkdir(parents=True)
    for package in (folder / name, parts):
        (package / "__init__.py").write_text("")
    (parts / "layer.py").write_text(LAYER.format(name=name))
    (parts / "heads.py").write_text(HEADS)


def examined(folder: Path, *words: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """A process of its own: in this one our packages are imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "nsa_doctor", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=110
    )


@pytest.mark.parametrize(
    "name", ["nsa", "tests", *(pytest.param(name, marks=pytest.mark.full) for name in ("configs", "regressions"))]
)
def test_a_package_is_examined_whatever_its_name(tmp_path: Path, name: str) -> None:
    write_package(tmp_path, name)
    done = examined(tmp_path, "sweep", "--subject", f"{name}.parts.layer:Layer", "--seq", "9")
    assert done.returncode == 0, done.stderr
    assert f"{name}.parts.layer.Layer" in done.stdout


def test_what_needs_our_own_geometry_examines_a_package_called_nsa(tmp_path: Path) -> None:
    write_package(tmp_path, "nsa")
    done = examined(tmp_path, "fuzz", "forward", "--subject", "nsa.parts.layer:Layer", "--examples", "5")
    assert "GO" in done.stdout
    assert done.returncode in (0, 3)


def test_a_folder_without_init_is_a_package_too(tmp_path: Path) -> None:
    write_package(tmp_path, "nsa")
    (tmp_path / "nsa" / "__init__.py").unlink()
    done = examined(tmp_path, "sweep", "--subject", "nsa.parts.layer:Layer", "--seq", "9")
    assert done.returncode == 0, done.stderr


def test_the_current_folder_is_looked_in_first(tmp_path: Path) -> None:
    for place in ("first", "second"):
        write_package(tmp_path / place, "nsa")
    (tmp_path / "second" / "nsa" / "parts" / "heads.py").write_text("raise ImportError('the wrong one')")
    words = ("sweep", "--subject", "nsa.parts.layer:Layer", "--seq", "9")
    done = examined(tmp_path / "first", *words, path=f"{tmp_path / 'second'}:{ROOT}")
    assert done.returncode == 0, done.stderr
