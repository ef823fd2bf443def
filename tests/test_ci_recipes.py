"""action.yml, the hook, the template for GitLab and the recipes of docs/ci.md, run as far as they can be here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "ci.md"
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


def loaded(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def shell(project, script, *before, **variables):
    """Run a script as the services do, in bash up to the first error; programs are looked for in `before` first."""
    path = os.pathsep.join((*map(str, before), str(Path(sys.executable).parent), os.environ["PATH"]))
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


ACTION = loaded("action.yml")
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}


def github(project, name, *before, outputs=None, **inputs):
    """Run a step of the action with these inputs, and the others as they are by themselves."""
    given = {key: each["default"] for key, each in ACTION["inputs"].items()} | inputs
    values = {f"inputs.{key}": value for key, value in given.items()} | (outputs or {})
    values |= {"github.action_path": str(ROOT)}
    variables = {key: filled(value, values) for key, value in STEPS[name]["env"].items()}
    files = {each: str(project / each.lower()) for each in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    assert STEPS[name]["shell"] == "bash"
    return shell(project, STEPS[name]["run"], *before, **variables, **files)


def filled(text, values):
    return re.sub(r"\${{ (\S+) }}", lambda found: values[found[1]], text)


@pytest.fixture
def stand_in(tmp_path):
    """A folder with a `python` and a `pip` that write down how they are called."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    for name in ("python", "pip"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> "{tmp_path}/calls"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(("is_causal", "code"), [pytest.param(True, 0, marks=pytest.mark.full), (False, 1)])
def test_the_action_annotates_the_line_fills_the_summary_and_decides(project, is_causal, code):
    folder = project(is_causal)
    examined = github(folder, "Examine", subject="my_pkg.attn:make", policy="gate.yaml", arguments="--jobs 1 --quiet")
    assert (folder / "github_output").read_text() == f"exit-code={code}\n", examined.stdout + examined.stderr
    annotated = github(folder, "Annotate", baseline="nsa-doctor-report/report.json")
    assert annotated.returncode == 0, annotated.stderr
    errors = [line for line in annotated.stdout.splitlines() if line.startswith("::error ")]
    assert bool(errors) is not is_causal
    if errors:
        assert any(f"file={NAME},line={FIRST_LINE_OF_THE_CALL}," in error for error in errors)
    summary = (folder / "github_step_summary").read_text()
    assert summary.startswith("## nsa-doctor: NO WORSE")
    assert ("## nsa-doctor: NO-GO" in summary) is not is_causal
    assert all((folder / "nsa-doctor-report" / name).exists() for name in ("report.sarif", "report.html"))
    decided = github(folder, "Decide", outputs={"steps.examine.outputs.exit-code": str(code)})
    assert decided.returncode == code


def test_the_action_fails_without_a_report_where_there_is_no_such_subject(project):
    folder = project(True)
    assert github(folder, "Examine", subject="my_pkg.attn:nothing").returncode == 0
    assert (folder / "github_output").read_text() == "exit-code=2\n"
    assert github(folder, "Annotate").returncode == 0
    assert not (folder / "nsa-doctor-report").exists()


def test_the_action_obeys_no_shell_in_its_inputs(project):
    folder = project(True)
    hostile = 'x"; touch "$PWD/obeyed"; $(touch obeyed) `touch obeyed`'
    github(folder, "Examine", subject=hostile, policy=hostile, arguments=hostile, report="x")
    github(folder, "Annotate", report=hostile, baseline=hostile)
    assert not (folder / "obeyed").exists()
    assert all("${{" not in step["run"] for step in STEPS.values())


def test_the_action_installs_itself_and_the_project_and_torch_for_cpus(project, stand_in, tmp_path):
    folder = project(True)
    assert github(folder, "Install", stand_in, requirements="-e . -r more.txt").returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    expected = ["python", "-m", "pip", "install", "--disable-pip-version-check", *index]
    assert calls == [*expected, str(ROOT), "-e", ".", "-r", "more.txt"]


def test_what_is_uploaded_has_a_name_of_its_own_in_every_job_and_step(project):
    folder = project(True)
    of = {"github.job": "examine", "strategy.job-index": "1"}
    for subject, report in (("my_pkg.attn:make", "out/first"), ("my_pkg.attn:other", "out/first"), ("", "out second")):
        assert github(folder, "Name what is uploaded", outputs=of, subject=subject, report=report).returncode == 0
    names = [line.removeprefix("name=") for line in (folder / "github_output").read_text().splitlines()]
    assert names == [
        "nsa-doctor-1-examine-my_pkg.attn-make-out-first",
        "nsa-doctor-1-examine-my_pkg.attn-other-out-first",
        "nsa-doctor-1-examine--out-second",
    ]
    uploads = [step["with"] for step in ACTION["runs"]["steps"] if "upload" in step.get("uses", "")]
    assert [each.get("name", each.get("category")) for each in uploads] == ["${{ steps.name.outputs.name }}"] * 2


def test_the_workflow_of_the_document_gives_inputs_that_the_action_has():
    (step,) = (
        step
        for step in recipe(".github/workflows/nsa-doctor.yml")["jobs"]["examine"]["steps"]
        if "nsa-doctor" in step["uses"]
    )
    assert set(step["with"]) <= set(ACTION["inputs"])
    named = re.findall(r"`([a-z-]+): ", DOCUMENT.read_text(encoding="utf-8"))
    assert {"sarif", "baseline", "requirements", "torch-index"} <= set(named) & set(ACTION["inputs"])
    used = re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8"))
    assert set(used) == set(ACTION["inputs"])


def test_nothing_is_installed_from_an_index_where_it_is_not():
    """No page and no message of the code says so; the tests are no place where people look."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = {each: ROOT / each for each in files if each.endswith((".md", ".py", ".yml", ".yaml", ".toml", ".ipynb"))}
    pattern = re.compile(r"(?:pip install|pip wheel|uvx|uv add|--from)(?: -\S+)* ['\"]?nsa[-_]doctor(?![-_\w/])")
    assert all(map(pattern.search, ("pip install 'nsa-doctor[hf]'", "pip install -U nsa-doctor", "uvx nsa-doctor run")))
    found = [
        f"{name}: {each}"
        for name, path in texts.items()
        if not name.startswith("tests/") and path.exists()
        for each in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_gitlab_finds_its_junit_file_after_a_failure(project, stand_in, tmp_path):
    job = recipe(".gitlab-ci.yml")["nsa-doctor"]
    template = loaded("docs/gitlab-ci.yml")[job["extends"]]
    variables = template["variables"] | job["variables"] | {"NSA_DOCTOR_POLICY": "gate.yaml"}
    assert set(job["variables"]) <= set(template["variables"])
    (stand_in / "python").unlink()
    folder = project(False)
    done = shell(folder, "\n".join(template["script"]), stand_in, **variables)
    assert done.returncode == 1, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["pip", "install", variables["NSA_DOCTOR_SOURCE"], "-e", "."]
    assert template["artifacts"]["when"] == "always"
    assert "<failure" in (folder / template["artifacts"]["reports"]["junit"]).read_text()


@pytest.mark.parametrize(("is_causal", "code"), [pytest.param(True, 0, marks=pytest.mark.full), (False, 1)])
def test_the_hook_of_pre_commit_passes_what_is_right_and_stops_what_is_not(project, is_causal, code):
    (hook,) = loaded(".pre-commit-hooks.yaml")
    (used,) = recipe(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert used["id"] == hook["id"]
    assert (hook["language"], hook["pass_filenames"]) == ("system", False)
    answer = shell(project(is_causal), " ".join([hook["entry"], *used["args"], "--select FWD102,FWD201 --jobs 1"]))
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
