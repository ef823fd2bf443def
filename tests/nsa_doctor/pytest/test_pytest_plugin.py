"""`pytest --nsa-subject`: every check as an item, in a project of someone else's."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

PROJECT = {
    "attn.py": """
import time

from torch import nn


class Attention(nn.Module):
    def __init__(self, is_causal):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.is_causal = is_causal

    def forward(self, x):
        q, k, v = (each(x).unsqueeze(1) for each in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).squeeze(1)


class Sleeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        if self.training and x.shape[0] > 1:
            time.sleep(600)
        return self.out(x)


def healthy():
    return Attention(True)


def faulty():
    return Attention(False)


def sleeper():
    return Sleeper()


def unbuildable():
    raise ValueError("boom")
""",
    "test_own.py": "def test_own():\n    assert True\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run_pytest(project, *words, **variables):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}  # not of these tests
    return subprocess.run(
        command, cwd=project, env={**outside, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def test_without_its_options_nothing_is_added(project):
    answer = run_pytest(project)
    assert answer.returncode == 0
    assert "1 passed" in answer.stdout


def test_a_healthy_subject_passes_beside_the_projects_own_tests(project):
    answer = run_pytest(project, "--nsa-subject", "attn:healthy", "--nsa-select", "FWD10,FWD20,NAN101")
    assert answer.returncode == 0, answer.stdout
    assert "failed" not in answer.stdout
    assert "14 passed" in answer.stdout  # FWD101 to 103, 201 to 209, NAN101, and test_own


def test_a_faulty_one_fails_the_check_by_name_and_says_where(project):
    answer = run_pytest(project, "--nsa-subject", "attn:faulty", "--nsa-select", "FWD201", "--junitxml", "junit.xml")
    assert answer.returncode == 1
    assert "FAILED nsa-doctor[attn:faulty]::FWD201-future-changes-output" in answer.stdout
    assert "attn.py:15" in answer.stdout
    assert "nsa-doctor run --select FWD201 --subject attn:faulty" in answer.stdout
    cases = {case.get("name"): case for case in ET.parse(project / "junit.xml").iter("testcase")}
    properties = {
        each.get("name"): each.get("value") for each in cases["FWD201-future-changes-output"].iter("property")
    }
    assert properties["nsa_doctor_verdict"] == "FAIL"
    assert len(properties["nsa_doctor_fingerprint"]) == 16


@pytest.mark.full
def test_keywords_choose_among_checks_and_xdist_shares_them_out(project):
    words = ("--nsa-subject", "attn:faulty", "-k", "FWD20 or FWD101", "-n", "2")
    answer = run_pytest(project, *words)
    assert answer.returncode == 1
    failed = {line.split("::")[1].split("-")[0] for line in answer.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {"FWD201", "FWD202"}


def test_a_part_that_is_not_offered_is_skipped_with_the_reason(project):
    answer = run_pytest(project, "--nsa-subject", "attn:healthy", "--nsa-select", "GAT101", "-rs")
    assert answer.returncode == 0
    assert "no gate" in answer.stdout


@pytest.mark.full
def test_a_call_that_hangs_fails_its_check_in_time(project):
    words = ("--nsa-subject", "attn:sleeper", "--nsa-select", "FWD203", "--nsa-timeout", "3")
    answer = run_pytest(project, *words)
    assert answer.returncode == 1
    assert "does not return" in answer.stdout
    assert "attn.py:25" in answer.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--nsa-subject", "attn"), "--nsa-subject must be package.module:factory, fn:package.module:function, hf:"),
        (("--nsa-subject", "attn:healthy", "--nsa-select", "XYZ"), "no check's code starts with 'XYZ'"),
        (("--nsa-subject", "attn:healthy", "--nsa-profile", "quik"), "did you mean quick"),
        (("--nsa-select", "FWD"), "--nsa-select has no effect without --nsa-subject"),
    ],
)
def test_options_that_cannot_be_are_usage_errors(project, words, complaint):
    answer = run_pytest(project, *words)
    assert answer.returncode == 4
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_subject_that_cannot_be_imported_fails_and_does_not_pass(project):
    answer = run_pytest(project, "--nsa-subject", "attn:missing", "--nsa-select", "FWD101")
    assert answer.returncode == 1
    assert "attn has no missing" in answer.stdout


def test_a_subject_that_is_none_fails_one_item_and_no_other_passes(project):
    answer = run_pytest(project, "--nsa-subject", "attn:nowhere", "--nsa-select", "FWD206,GRD201,FWD201")
    assert answer.returncode == 1
    assert "1 failed, 1 passed, 2 skipped" in answer.stdout
    assert "attn:nowhere" in answer.stdout


def test_a_factory_that_raises_passes_nothing_and_every_item_names_the_exception(project):
    words = ("--nsa-subject", "attn:unbuildable", "--nsa-select", "FWD206,GRD201")
    answer = run_pytest(project, *words)
    assert answer.returncode == 1
    assert "2 failed" in answer.stdout
    items = answer.stdout.partition("short test summary")[0]  # which repeats whole sentences where it runs in CI
    assert items.count("not answered: the subject could not be loaded: the subject raises ValueError: boom") == 2


@pytest.mark.full
def test_passes_are_saved_and_compared_with_a_saved_run(project):
    words = ("--pyargs", "nsa_doctor.pytest.benchmarks", "-m", "not nsa_doctor", "-k", "no_grad-128")
    subject = ("--nsa-subject", "attn:healthy", "--benchmark-max-time", "0.1")
    saved = run_pytest(project, *words, *subject, "--benchmark-save", "before")
    assert saved.returncode == 0, saved.stdout
    compared = run_pytest(project, *words, *subject, "--benchmark-compare", "0001")
    assert compared.returncode == 0
    assert "0001_before" in compared.stdout


def test_what_the_projects_file_names_is_examined_as_it_says(project):
    (project / "src").mkdir()
    (project / "attn.py").rename(project / "src" / "attn.py")
    words = 'subject = "attn:faulty"\npath = ["src"]\npolicy = "foreign"\nselect = "FWD101,FWD201"\nseed = 3\n'
    (project / "nsa-doctor.toml").write_text(words)
    answer = run_pytest(project, "--nsa")
    assert answer.returncode == 1, answer.stdout
    assert "1 failed, 2 passed" in answer.stdout
    assert "causality violation" in answer.stdout
    assert "--seed 3" in answer.stdout
    installed = project / "installed"  # another checkout, say, whose package is found behind
    installed.mkdir()
    (installed / "attn.py").write_text("faulty = None\n")
    answer = run_pytest(project, "--nsa-subject", "attn:faulty", "--nsa-select", "FWD201", PYTHONPATH=str(installed))
    assert "1 failed, 1 passed" in answer.stdout
    answer = run_pytest(project, "--nsa", "--nsa-select", "FWD101")
    assert answer.returncode == 0, answer.stdout
    assert "2 passed" in answer.stdout


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        (None, ["--nsa"], "no nsa-doctor.toml here or above names a subject"),
        ('policy = "foreign"\n', ["--nsa"], "no nsa-doctor.toml here or above names a subject"),
        ('subjekt = "attn:healthy"\n', ["--nsa"], "nsa-doctor.toml: "),
        ('subject = "attn:healthy"\n', ["--nsa", "--nsa-subject", "attn:faulty"], "leave one out"),
        ('subject = "attn:healthy"\n', ["--nsa-select", "FWD"], "add one, or leave it out"),
    ],
    ids=["no file", "names none", "a slip", "two subjects", "not asked for"],
)
def test_a_projects_file_that_cannot_be_followed_is_a_usage_error(project, text, words, why):
    if text is not None:
        (project / "nsa-doctor.toml").write_text(text)
    answer = run_pytest(project, *words)
    assert answer.returncode == pytest.ExitCode.USAGE_ERROR
    assert why in answer.stderr
    assert "Traceback" not in answer.stderr
