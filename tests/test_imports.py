"""No import breaks an arrow, and every broken arrow would be found."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.arrows import ROOMS, fits, modules, read_imports, wrong_arrows

ROOT = Path(__file__).parents[1]


def test_no_import_breaks_a_rule() -> None:
    assert wrong_arrows(ROOT) == []


def test_no_room_leads_back_to_itself() -> None:
    arrows = {room: {other for other in ROOMS if fits(other, allowed)} for room, allowed in ROOMS.items()}
    assert len(list(TopologicalSorter(arrows).static_order())) == len(ROOMS)  # raises CycleError


def test_the_doctor_is_seen_at_a_glance() -> None:
    visible = [path for path in (ROOT / "nsa_doctor").iterdir() if path.name != "__pycache__"]
    assert sorted(path.name for path in visible if path.is_file()) == ["__init__.py", "__main__.py", "py.typed"]
    rooms = [path for path in visible if path.is_dir()]
    assert len(rooms) <= 16
    for room in rooms:
        docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
        assert docstring, room
        assert docstring.count(". ") == 0, room
        assert docstring.endswith("."), room


def test_the_imports_are_read() -> None:
    files = dict(modules(ROOT, "nsa"))
    tree = ast.parse(files["nsa.config"].read_text(encoding="utf-8"))
    assert "nsa.ops.geometry" in {found.target for found in read_imports("nsa.config", tree, files, ROOT)}


HEALTHY = {
    "pyproject.toml": '[project]\ndependencies = ["torch>=2", "PyYAML>=6"]\n',
    "nsa/__init__.py": "from nsa.ops.api import x\n",
    "nsa/types.py": "import torch\n",
    "nsa/backends.py": "import os\nflag = os.environ.get('NSA_USE_FA2')\n",
    "nsa/ops/__init__.py": "",
    "nsa/ops/geometry.py": "",
    "nsa/ops/tiles.py": "",
    "nsa/ops/slide/__init__.py": "",
    "nsa/ops/slide/reference.py": "from nsa.ops.geometry import x\n",
    "nsa/ops/slide/grouping.py": "",
    "nsa/ops/slide/vectorized.py": "from nsa.ops import tiles\nfrom nsa.ops.slide.grouping import x\n",
    "nsa/ops/slide/flash.py": "def f() -> None:\n    import flash_attn\n",
    "nsa/ops/api.py": "from nsa.ops.slide import reference, vectorized\nfrom nsa.backends import x\n",
    "nsa/nn/gate.py": "from nsa.ops.api import x\n",
    "nsa/train/loop.py": "from nsa.nn.gate import x\nfrom nsa.data.text import x\n",
    "nsa/data/text.py": "import yaml\n",
    "nsa_doctor/__init__.py": "",
    "nsa_doctor/cli/main.py": "import nsa_doctor.core.registry\ndef f():\n    import nsa_doctor.policy.go\n",
    "nsa_doctor/core/registry.py": "import json\n",
    "nsa_doctor/policy/go.py": "",
    "nsa_doctor/subject/contract.py": "import torch\nimport nsa\n",
    "regressions/r001_hang.py": "from nsa_doctor.subject.contract import x\n",
}
FAULTY = {  # what is added to the healthy tree, and what must be said of it
    "upwards": ("nsa/ops/geometry.py", "import nsa.ops.api", "nsa.ops.geometry may not import nsa.ops.api"),
    "doctor-in-the-model": ("nsa/nn/gate.py", "import nsa_doctor", "nsa may not import nsa_doctor"),
    "tests-in-the-doctor": ("nsa_doctor/core/registry.py", "import tests.conftest", "nsa_doctor may not import tests"),
    "regressions-in-the-doctor": (
        "nsa_doctor/core/registry.py",
        "def f():\n    import_module('regressions.r001_hang')",
        "nsa_doctor may not import regressions",
    ),
    "installed-regressions-in-the-doctor": (
        "nsa_doctor/core/registry.py",
        "def f():\n    import_module('nsa_doctor.regressions.r001_hang')",
        "nsa_doctor.core.registry may not import nsa_doctor.regressions.r001_hang",
    ),
    "reference-from-vectorized": (
        "nsa/ops/slide/vectorized.py",
        "from .reference import x",
        "nsa.ops.slide.vectorized may not import nsa.ops.slide.reference",
    ),
    "vectorized-from-reference": (
        "nsa/ops/slide/reference.py",
        "from . import vectorized",
        "nsa.ops.slide.reference may not import nsa.ops.slide.vectorized",
    ),
    "tiles-in-the-reference": (
        "nsa/ops/slide/reference.py",
        "def f():\n    from nsa.ops import tiles",
        "nsa.ops.slide.reference may not import nsa.ops.tiles",
    ),
    "implementation-in-a-part": (
        "nsa/ops/slide/grouping.py",
        "import nsa.ops.slide.flash",
        "nsa.ops.slide.grouping may not import nsa.ops.slide.flash",
    ),
    "implementation-in-the-model": (
        "nsa/nn/gate.py",
        "from nsa.ops.slide import vectorized",
        "nsa.nn.gate may not import nsa.ops.slide.vectorized",
    ),
    "model-in-the-data": ("nsa/data/text.py", "from nsa.nn import gate", "nsa.data.text may not import nsa.nn.gate"),
    "no-layer": ("nsa/helpers.py", "from nsa import types", "nsa.helpers has no place among the layers"),
    "torch-in-the-doctor": (
        "nsa_doctor/policy/verdict.py",
        "def f():\n    from torch import nn",
        "nsa_doctor.policy.verdict may not import torch",
    ),
    "undeclared": ("nsa/nn/gate.py", "import flash_attn", "flash_attn is not among the base dependencies"),
    "environment": (
        "nsa/nn/gate.py",
        "import os\nx = os.environ['X']",
        "nsa.nn.gate reads the environment; nsa.backends alone does",
    ),
    "environment-by-name": (
        "nsa_doctor/cli/main.py",
        "from os import getenv",
        "nsa_doctor.cli.main reads the environment; nsa.backends alone does",
    ),
    "heavy-start": (
        "nsa_doctor/core/registry.py",
        "import nsa",
        "nsa-doctor imports nsa at its start: nsa_doctor.cli.main -> nsa_doctor.core.registry",
    ),
    "room": (
        "nsa_doctor/core/registry.py",
        "def f():\n    import nsa_doctor.policy.verdict",
        "nsa_doctor.core.registry may not import nsa_doctor.policy.verdict",
    ),
    "no-room": (
        "nsa_doctor/attic/stray.py",
        "import nsa_doctor.core.registry",
        "nsa_doctor.attic.stray has no place among the rooms",
    ),
}


def write_tree(root: Path, extra: tuple[str, str] | None = None) -> None:
    tree = dict(HEALTHY)
    if extra:
        tree[extra[0]] = tree.get(extra[0], "") + extra[1] + "\n"
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_a_healthy_tree_is_not_accused(tmp_path: Path) -> None:
    write_tree(tmp_path)
    assert wrong_arrows(tmp_path) == []


@pytest.mark.parametrize(("file", "text", "complaint"), FAULTY.values(), ids=FAULTY.keys())
def test_a_wrong_arrow_is_found(file: str, text: str, complaint: str, tmp_path: Path) -> None:
    write_tree(tmp_path, (file, text))
    assert [line.split(": ", 1)[1] for line in wrong_arrows(tmp_path)] == [complaint]
