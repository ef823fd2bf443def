"""Every file of examples/ does what its README says, by the command that stands there."""

import ast
import importlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from nsa_doctor.cli.evidence import read_gate_option
from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Decision, Verdict
from nsa_doctor.testing import run_check
from tests.nsa_doctor.conftest import environment

Doctor = Callable[..., CompletedProcess[str]]
FOLDER = Path(__file__).parents[2] / "examples"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
COMMANDS = dict(re.findall(r"\| \[([\w./]+)\].*`nsa-doctor ([^`]+)` \|", README))
FEWER = {  # of each, what is quick
    "module.py": "--select FWD102,FWD201",
    "function.py": "--select FUN101,FUN201 --profile smoke",
    "decode_adapter.py": "--select DEC101 --profile smoke",
    "training_step.py": "--select GRD204 --profile smoke",
    "training_loop.py": "--select GRD214,GRD216",
}


def test_the_table_names_every_file_and_no_other() -> None:
    named = {name.rstrip("/") for name in re.findall(r"^\| \[([^]]+)\]", README, flags=re.MULTILINE)}
    assert named == {path.name for path in FOLDER.iterdir() if path.name not in ("README.md", "__pycache__")}
    assert len(named) == 8


@pytest.mark.parametrize("name", FEWER)
def test_an_example_is_a_go(doctor: Doctor, name: str) -> None:
    words = [*COMMANDS[name].split(), *FEWER[name].split(), "--quiet", "--jobs", "1"]
    answer = doctor(*words, cwd=FOLDER, env=environment())
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_function_would_be_found_if_its_window_were_another(doctor: Doctor) -> None:
    words = COMMANDS["function.py"].replace("window=16", "window=15").split()
    answer = doctor(*words, "--select", "FUN201", "--profile", "smoke", "--quiet", cwd=FOLDER, env=environment())
    assert answer.returncode == 1, answer.stdout + answer.stderr


def test_the_policy_decides_on_the_module(doctor: Doctor, tmp_path: Path) -> None:
    words = [*COMMANDS["policy.yaml"].split(), "--quiet", "--jobs", "1", "--output", str(tmp_path / "report")]
    answer = doctor(*words, cwd=FOLDER, env=environment())
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "GO by policy policy" in answer.stdout


def executed(cells: list[str]) -> Iterator[Any]:
    """What each cell's last expression gives, as a notebook shows it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        yield last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_runs_and_shows_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    notebook = json.loads((FOLDER / "examine.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]
    shown = list(executed(["".join(cell["source"]) for cell in cells]))
    assert "<iframe" in shown[1]._repr_html_()
    assert "FWD201 causality violation" in capsys.readouterr().out
    assert shown[-1] is Decision.GO


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of a check as pip would install it."""
    project = tomllib.loads((FOLDER / "check_plugin" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in project["entry-points"].items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(points))
    for folder in (tmp_path, FOLDER / "check_plugin", FOLDER):
        monkeypatch.syspath_prepend(folder)
    registry._modules.cache_clear()
    yield
    registry._modules.cache_clear()


@pytest.mark.usefixtures("plugin")
def test_the_check_of_another_package_is_listed_and_finds_its_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["explain", "ACM101"]) == 0
    assert "ACM101 output-far-larger-than-input" in capsys.readouterr().out
    check = registry.load("ACM101")
    module = importlib.import_module("module")
    for seed in range(3):
        torch.manual_seed(seed)
        assert run_check(check, module.make).verdict is Verdict.PASS
    found = run_check(check, module.make, is_planted=True)
    assert (found.verdict, len(found.findings)) == (Verdict.FAIL, 1)
    assert found.findings[0].message.endswith("(limit 100) at S=64")


@pytest.mark.usefixtures("plugin")
def test_the_page_on_checks_of_ones_own_holds_the_files_and_a_test_that_passes(tmp_path: Path) -> None:
    page = (FOLDER.parent / "docs" / "own_check.md").read_text(encoding="utf-8")
    code, test = re.findall(r"```python\n# \S+\n(.*?)```", page, flags=re.DOTALL)
    (project,), (policy,) = (re.findall(rf"```{kind}\n(.*?)```", page, flags=re.DOTALL) for kind in ("toml", "yaml"))
    folder = FOLDER / "check_plugin"
    assert code == (folder / "attention_checks" / "acm101_output_far_larger.py").read_text(encoding="utf-8")
    assert project == (folder / "pyproject.toml").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(test, names)
    names["test_it_finds_what_it_plants_and_is_silent_otherwise"]()
    (tmp_path / "gate.yaml").write_text(policy)
    assert "ACM101" in str(read_gate_option(str(tmp_path / "gate.yaml")))


@pytest.mark.usefixtures("plugin")
def test_run_takes_the_check_of_another_package(doctor: Doctor) -> None:
    words = ("run", "--subject", "module:make", "--select", "ACM", "--profile", "smoke", "--quiet")
    answer = doctor(*words, cwd=FOLDER, env=environment())
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "1 pass" in answer.stdout
