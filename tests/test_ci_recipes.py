"""The recipes in docs/ci.md, run as far as they can be without the services they are for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

DOCUMENT = Path(__file__).parents[1] / "docs" / "ci.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
MODULE = """
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        q, k, v = (each(x).unsqueeze(1) for each in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=IS_CAUSAL).squeeze(1)


def make():
    return Attention()
"""
NAME = "my_pkg/attn.py"
GATE = "{profile: smoke, require: [{codes: [FWD102, FWD201], because: a recipe is about more than the checks}]}"
FIRST_LINE_OF_THE_CALL = MODULE[: MODULE.index("nn.functional.scaled")].count("\n") + 1


def recipe(name):
    """The block whose first line names this file, as YAML."""
    return next(yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml" and text.startswith(f"# {name}\n"))


@pytest.fixture
def project(tmp_path):
    def making(is_causal):
        (tmp_path / "my_pkg").mkdir()
        (tmp_path / "my_pkg" / "__init__.py").touch()
        (tmp_path / NAME).write_text(MODULE.replace("IS_CAUSAL", str(is_causal)))
        (tmp_path / "gate.yaml").write_text(GATE)
        return tmp_path

    return making


def shell(project, script, **variables):
    """Run a script as the services do, in bash up to the first error; nothing is installed, and the gate is short."""
    script = "\n".join(line for line in script.splitlines() if not line.startswith("pip install"))
    script = script.replace("--policy foreign", f"--policy {project / 'gate.yaml'} --jobs 1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=project,
        env={**kept, "PATH": path, "CI": "true", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def github_steps():
    steps = recipe(".github/workflows/nsa-doctor.yml")["jobs"]["examine"]["steps"]
    return {step["name"]: step["run"] for step in steps if "name" in step}


@pytest.mark.parametrize(("is_causal", "code"), [pytest.param(True, 0, marks=pytest.mark.full), (False, 1)])
def test_github_annotates_the_line_and_fills_the_summary(project, tmp_path, is_causal, code):
    summary = tmp_path / "summary.md"
    steps, folder = github_steps(), project(is_causal)
    examined = shell(folder, steps["Examine"])
    assert examined.returncode == code, examined.stdout + examined.stderr
    annotated = shell(folder, steps["Annotate"], GITHUB_STEP_SUMMARY=str(summary))
    assert annotated.returncode == 0, annotated.stderr
    errors = [line for line in annotated.stdout.splitlines() if line.startswith("::error ")]
    assert bool(errors) is not is_causal
    if errors:
        assert any(f"file={NAME},line={FIRST_LINE_OF_THE_CALL}," in error for error in errors)
    assert ("NO-GO" in summary.read_text()) is not is_causal


@pytest.mark.full
def test_github_uploads_what_the_doctor_writes(project):
    workflow = recipe(".github/workflows/nsa-doctor.yml")
    steps = workflow["jobs"]["examine"]["steps"]
    paths = [
        step["with"].get("path") or step["with"].get("sarif_file") for step in steps if "upload" in step.get("uses", "")
    ]
    folder = project(True)
    shell(folder, github_steps()["Examine"])
    assert len(paths) == 2
    assert all((folder / path).exists() for path in paths)


def test_gitlab_finds_its_junit_file_after_a_failure(project):
    job = recipe(".gitlab-ci.yml")["nsa-doctor"]
    folder = project(False)
    assert shell(folder, "\n".join(job["script"])).returncode == 1
    assert job["artifacts"]["when"] == "always"
    assert "<failure" in (folder / job["artifacts"]["reports"]["junit"]).read_text()


@pytest.mark.parametrize(("is_causal", "code"), [pytest.param(True, 0, marks=pytest.mark.full), (False, 1)])
def test_the_hook_of_pre_commit_passes_what_is_right_and_stops_what_is_not(project, is_causal, code):
    (hook,) = recipe(".pre-commit-config.yaml")["repos"][0]["hooks"]
    answer = shell(project(is_causal), hook["entry"])
    assert answer.returncode == code, answer.stdout


@pytest.mark.full
def test_the_lines_for_pytest_run_as_they_are_written(project):
    first, second = (text for kind, text in BLOCKS if kind == "sh")
    folder = project(True)
    answer = shell(folder, first.replace("--nsa-profile quick", "--nsa-profile quick --nsa-select FWD201"))
    assert answer.returncode == 0, answer.stdout
    assert (folder / "junit.xml").exists()
    quickly = "-k no_grad-128 --benchmark-max-time 0.1"
    second = second.replace("--benchmark-save before", f"--benchmark-save before {quickly}")
    compared = shell(folder, second.replace("--benchmark-compare-fail median:100%", quickly))
    assert compared.returncode == 0, compared.stdout
    assert "0001_before" in compared.stdout
