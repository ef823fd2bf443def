"""What README.md and the pages of docs show works as it stands."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsa_doctor.cli.main import serve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = "\n".join(TEXTS[name] for name in ("examine.md", "verdicts.md", "attention.md"))
EXAMPLES = re.findall(r"```python\n(.*?)```", README + PAGES, flags=re.DOTALL)


def test_the_python_example_runs() -> None:
    (example,) = (code for code in EXAMPLES if "import NSAttention" in code or "NSAttention," in code)
    shown = {"logits": [2, 100, 256], "tokens": [2, 105]}
    assert all(str(shape) in example for shape in shown.values())
    names: dict[str, object] = {}
    exec(example, names)
    assert {name: list(getattr(names[name], "shape")) for name in shown} == shown  # noqa: B009


def test_every_make_target_it_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"doctor", "test"} <= set(re.findall(r"\bmake (?:PYTHON=\S+ )?(\w[\w-]*)", README)) <= targets


def test_what_is_installed_in_a_project_of_ones_own_is_the_folder_of_the_doctor() -> None:
    own = README.partition("## Your own module")[2].partition("## ")[0]
    installed = re.findall(r"pip install (?!-)'?([^\s'`]+)", own)
    assert len(installed) == 2
    assert all(each.startswith("/path/to/nsa-doctor") for each in installed)


def test_every_command_it_shows_takes_the_options_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown: dict[str, set[str]] = {}
    for text in (README, *TEXTS.values()):
        blocks = "".join(re.findall(r"(?ms)^```.*?^```", text))
        spans = re.findall(r"`nsa-doctor (\w[\w-]*)([^`\n]*)`", text)
        for command, options in (*re.findall(r"(?m)^nsa-doctor (\w[\w-]*)(.*)", blocks), *spans):
            shown.setdefault(command, set()).update(re.findall(r"--[\w-]+", options.partition(" # ")[0]))
    assert {"sweep", "matrix", "render", "watch", "regressions"} <= set(shown)
    for command, options in shown.items():
        assert serve([command, "--help"]) == 0
        assert options <= set(re.findall(r"--[\w-]+", capsys.readouterr().out)), command


def run_on(folder: Path, words: str, *, is_quiet: bool = True) -> subprocess.CompletedProcess[str]:
    """What the command says in a folder that holds the examples."""
    return subprocess.run(
        [sys.executable, "-m", "nsa_doctor", *words.split(), *["--quiet"] * is_quiet],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_faulty_example_is_found_as_shown(tmp_path: Path) -> None:
    (example,) = (code for code in EXAMPLES if "class Attention" in code)
    (tmp_path / "my_attention.py").write_text(example, encoding="utf-8")
    assert "`nsa-doctor run --subject my_attention:Attention`" in README
    page = TEXTS["reports.md"]
    (command,) = re.findall(r"(?m)^nsa-doctor (run --subject my_attention:Attention --select .*)", page)
    done = run_on(tmp_path, command)
    assert done.returncode == 1, done.stderr
    finding = README[README.index("FWD201 causality violation") : README.index("  reproduce")]
    assert finding in done.stdout
    picture = html.unescape(re.sub("<[^>]*>", "", (ROOT / "docs/report.svg").read_text(encoding="utf-8")))
    assert re.sub(r"\s", "", finding) in re.sub(r"\s", "", picture), "python docs/picture.py draws it"
    shown = page[page.index("my_attention:Attention: my_attention") : page.index("```\n\n## Part by part")]
    assert without_the_machine(shown) == without_the_machine(done.stdout)


def test_the_worked_policy_decides_as_shown(tmp_path: Path) -> None:
    (example,) = (code for code in EXAMPLES if "class Attention" in code)
    (tmp_path / "my_attention.py").write_text(example, encoding="utf-8")
    page = TEXTS["verdicts.md"]
    (policy,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")
    (command,) = re.findall(r"(?m)^nsa-doctor (go-no-go --subject my_attention:Attention .*)", page)
    (shown,) = re.findall(r"```\n(NO-GO by .*?)```", page, flags=re.DOTALL)
    done = run_on(tmp_path, command)
    assert done.returncode == 1, done.stderr
    assert without_the_machine(shown) == without_the_machine(done.stdout)
    (tmp_path / "my_attention.py").write_text(example.replace("triu(2)", "triu(1)"), encoding="utf-8")
    mended = run_on(tmp_path, command)
    assert re.match(r"GO by policy before a merge .*\n\nwhy +4 required checks passed\n", mended.stdout), mended


def test_the_worked_function_is_found_and_mended_as_shown(tmp_path: Path) -> None:
    page = TEXTS["examine_function.md"]
    (kernel,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (settings,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    shown = re.findall(r"```\n(fn:kernels.*?|FUN201 .*?)```", page, flags=re.DOTALL)
    (tmp_path / ".git").mkdir()
    for mask, command, expected in (
        ("triu(2)", "run --profile smoke", shown[0]),
        ("triu(1)", "run --profile smoke", "GO: 16 checks passed"),
        ("triu(1)", "run --spec causal --select FUN201 --profile smoke", shown[1]),
        ("triu(1 + k.shape[-2] - q.shape[-2])", "run --spec causal --select FUN201 --profile smoke", "1 pass\n"),
    ):
        assert f"`{mask}`" in page
        (tmp_path / "kernels.py").write_text(kernel.replace("triu(2)", mask), encoding="utf-8")
        if not (tmp_path / "nsa-doctor.toml").exists():
            assert run_on(tmp_path, "init", is_quiet=False).returncode == 0
        said = run_on(tmp_path, command).stdout
        assert without_the_machine(expected) in without_the_machine(said)
    assert settings in (tmp_path / "nsa-doctor.toml").read_text(encoding="utf-8")


def without_the_machine(report: str) -> str:
    """A report without its versions, its device, its time and what is measured of the doctor itself."""
    return re.sub(r"(?m)^cpu .*?, seed|^device .*|\(\d+\.\d s\)|^rests on(.|\n .)*", "-", report)


@pytest.mark.full  # tests of nsa_doctor.examine are in the short run
def test_the_example_in_python_says_go(tmp_path: Path) -> None:
    (example,) = (code for code in EXAMPLES if "nsa_doctor.examine(" in code)
    (tmp_path / "script.py").write_text(example, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stdout) == (0, "GO []\n"), done.stdout + done.stderr


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 130
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


@pytest.mark.parametrize(("name", "select"), [("Model", "FWD101,FWD201"), ("Mixer", "FWD201,DEC101")])
def test_the_adapters_it_shows_make_a_subject(tmp_path: Path, name: str, select: str) -> None:
    (example,) = (code for code in EXAMPLES if f"make={name}" in code)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    done = run_on(tmp_path, f"run --subject example:make --select {select} --profile smoke")
    assert done.returncode == 0, done.stdout + done.stderr
