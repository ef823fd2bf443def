"""`nsa-doctor matrix hf`: a table with every red cell shown, that goes on where it was left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.conformance import Cell, Status
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import ExitCode
from nsa_doctor.engine.matrix import CELLS, Journal, Matrix
from nsa_doctor.render.matrix import html, markdown, terminal
from tests.nsa_doctor.adapters.test_hugging_face import INSTALLED

ROOT = Path(__file__).parents[3]
RED = Cell(model="hf:rwkv", property_name="decode", status="differs", text="rows mix | by 4", script="print(1 < 2)")
CELLS_SHOWN = (
    Cell(model="hf:llama", property_name="decode", status="holds"),
    Cell(model="hf:llama", property_name="packed", status="does not apply", text="no position_ids"),
    RED,
    Cell(model="hf:blt", property_name="decode", status="cannot be built", text="sizes"),
)
VERSIONS = {"transformers": "5.0"}


def matrix(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What the command says with the small models of the tests installed."""
    return subprocess.run(
        [sys.executable, "-m", "nsa_doctor", "matrix", "hf", "--output", str(folder), "--quiet", *words],
        env=os.environ | {"PYTHONPATH": f"{INSTALLED}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("holds", "does not apply"), ExitCode.WELL),
        (("holds", "differs"), ExitCode.WRONG),
        (("cannot be built", "does not apply"), ExitCode.UNMEASURED),
        ((), ExitCode.UNMEASURED),
    ],
)
def test_a_matrix_of_which_nothing_was_measured_is_not_well(statuses: tuple[Status, ...], code: ExitCode):
    cells = tuple(Cell(model="hf:llama", property_name="decode", status=status) for status in statuses)
    found = Matrix(types=("llama",), properties=("decode",), versions=VERSIONS, cells=cells)
    assert found.exit_code is code


@pytest.mark.full
def test_cells_are_measured_shown_and_kept(tmp_path: Path):
    words = ("--types", "tiny,tiny_positions,tiny_hanging,tiny_dying", "--properties", "decode,twins")
    done = matrix(tmp_path, *words, "--jobs", "2", "--timeout", "6", "--standalone")
    assert done.returncode == 1, done.stderr
    cells = json.loads((tmp_path / "matrix.json").read_text(encoding="utf-8"))["cells"]
    ended = {(cell["model"], cell["property_name"]): cell["status"] for cell in cells}
    assert {key: status for key, status in ended.items() if status != "holds"} == {
        ("hf:tiny_positions", "decode"): "differs",
        ("hf:tiny_hanging", "decode"): "hangs",
        ("hf:tiny_dying", "twins"): "dies",
    }
    assert len(ended) == 8
    assert "reproduce  nsa-doctor matrix hf --types tiny_positions --properties decode" in done.stdout
    script = (tmp_path / "standalone" / "tiny_positions_decode.py").read_text(encoding="utf-8")
    assert "import re, torch, transformers" in script
    lines = (tmp_path / CELLS).read_text(encoding="utf-8")
    again = matrix(tmp_path, *words)
    assert again.stdout == done.stdout
    assert (tmp_path / CELLS).read_text(encoding="utf-8") == lines


def test_an_unknown_type_is_refused_with_the_nearest(tmp_path: Path):
    done = matrix(tmp_path, "--types", "tny")
    assert done.returncode == 2
    assert "the nearest are tiny" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("hf", "--properties", "speed"), "--properties must be some of causal"),
        (("hf", "--shard", "4/3"), "--shard must be a part of a whole"),
        (("jax",), "allowed are hf"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
):
    assert serve(["matrix", *words, "--output", str(tmp_path), "--quiet"]) == 2
    assert says in capsys.readouterr().err


def test_cells_of_another_version_are_not_mixed_in(tmp_path: Path):
    Journal(tmp_path / CELLS, VERSIONS).add(RED)
    with pytest.raises(UsageError, match=r"holds cells of transformers 5.0, and transformers 6.0 is installed"):
        Journal(tmp_path / CELLS, {"transformers": "6.0"})


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path):
    Journal(tmp_path / CELLS, VERSIONS).add(RED)
    with (tmp_path / CELLS).open("a", encoding="utf-8") as file:
        file.write('{"model": "hf:llama", "prop')
    assert list(Journal(tmp_path / CELLS, VERSIONS).cells) == [("hf:rwkv", "decode")]


def test_the_table_has_a_row_for_each_type_and_says_what_is_wrong():
    text = markdown(CELLS_SHOWN, VERSIONS, ("decode", "packed"))
    assert "| llama | ok | – |" in text
    assert "| rwkv | **differs** |  |" in text
    assert "rows mix \\| by 4" in text
    assert "- sizes: blt" in text


def test_the_page_escapes_what_it_shows():
    page = html(CELLS_SHOWN, VERSIONS, ("decode", "packed"))
    assert "print(1 &lt; 2)" in page
    assert 'href="#rwkv-decode"' in page


def test_a_terminal_gets_the_counts_and_the_red_cells():
    text = terminal(CELLS_SHOWN, VERSIONS)
    assert "3 types, 4 cells: 1 holds, 1 differs, 1 does not apply, 1 cannot be built" in text
    assert "hf:llama" not in text
