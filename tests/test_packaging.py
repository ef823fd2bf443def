"""The wheel holds what the command needs, and works from an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def run(*command: str | Path, cwd: Path, code: int = 0, seconds: float = 100.0, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network: hatchling comes with the extra `dev`."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    (built,) = folder.glob("nsa_doctor-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent / "installed"
    options = ["--no-deps", "--no-index", "--target", target]
    run(sys.executable, "-m", "pip", "install", *options, wheel, cwd=wheel.parent)
    return target


@pytest.fixture
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_module_and_configuration_and_nothing_else(wheel: Path) -> None:
    modules = {str(path.relative_to(ROOT)) for name in ("nsa", "nsa_doctor") for path in (ROOT / name).rglob("*.py")}
    cases = {f"nsa_doctor/{path.relative_to(ROOT)}" for path in (ROOT / "regressions").glob("*.py")}
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "nsa_doctor" / "render" / "page").iterdir()}
    pages |= {"nsa_doctor/regressions/README.md", "nsa/py.typed", "nsa_doctor/py.typed"}
    pages |= {f"nsa_doctor/core/{name}.json" for name in ("score", "usual_costs")}
    configs = {f"nsa/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"nsa/configs/m7c_125m_fast_log.yaml", "nsa/configs/train_showcase.yaml"} <= configs
    assert names == modules | cases | configs | pages


def test_two_packages_are_installed_and_nothing_else(installed: Path) -> None:
    folders = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert folders == {"nsa", "nsa_doctor", "bin"}


def test_the_wheel_carries_the_licence(wheel: Path, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_flash_attn_comes_with_its_extra_alone(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    assert [need for need in needs if "flash" in need] == ["flash-attn>=2.8; extra == 'flash'"]
    assert any(need.startswith("torch>=") and "extra" not in need for need in needs)


def test_built_in_configurations_load_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    code = "import nsa.config as c; print(c.__file__, *(c.load_config(name).model.dim for name in c.builtin_configs()))"
    printed = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert printed == [str(installed / "nsa" / "config.py"), "768", "128", "128"]


def test_the_command_answers_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "nsa-doctor"
    assert "sweep" in run(sys.executable, command, "--help", cwd=tmp_path, PYTHONPATH=str(installed))


def strangers(folder: Path) -> Path:
    """Packages of a user's who calls them as we call ours; to import one is an error."""
    for name in ("regressions", "tests", "configs", "nsa"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError(__name__)")
    (folder / "regressions" / "r001_range_iteration_hang.py").write_text("")
    return folder


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("", id="found last", marks=pytest.mark.full),
        pytest.param(".", id="found first", marks=pytest.mark.full),
    ],
)
def test_cases_run_among_packages_of_the_same_names(installed: Path, tmp_path: Path, path: str) -> None:
    words = ("-m", "nsa_doctor", "regressions", "r007", "r022", "--planted", "--quiet")
    paths = os.pathsep.join(filter(None, (path, str(installed))))
    output = run(sys.executable, *words, cwd=strangers(tmp_path), PYTHONPATH=paths)
    assert "2 cases: 2 absent" in output
    assert f"{installed}/nsa_doctor/regressions/r022_unique_consecutive_without_sort.py" in output


@pytest.mark.full
def test_the_line_of_a_case_that_hangs_is_named_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "nsa-doctor"
    output = run(sys.executable, command, "regressions", "r001", "--planted", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "1 case: 1 absent" in output


@pytest.mark.parametrize("folder", [lambda folder: folder, strangers], ids=["empty", "of strangers"])
def test_the_table_of_cases_is_printed_from_any_folder(installed: Path, tmp_path: Path, folder: Any) -> None:
    words = ("-m", "nsa_doctor", "regressions", "--format", "md")
    table = run(sys.executable, *words, cwd=folder(tmp_path), PYTHONPATH=str(installed))
    assert (ROOT / "regressions" / "README.md").read_text(encoding="utf-8").endswith(table)


def test_the_built_in_layer_is_examined_where_another_nsa_is_found_first(installed: Path, tmp_path: Path) -> None:
    words = ("-m", "nsa_doctor", "sweep", "--seq", "33", "--forward-only", "--quiet")
    output = run(sys.executable, *words, cwd=strangers(tmp_path), PYTHONPATH=os.pathsep.join((".", str(installed))))
    assert "everything that was measured is finite" in output


def test_the_pythons_that_are_named_are_those_that_are_tried(metadata: Message) -> None:
    named = [each.rpartition(" ")[2] for each in metadata.get_all("Classifier", []) if ":: Python :: 3." in each]
    assert tuple(named) == PYTHONS


@pytest.mark.full
def test_an_index_takes_the_wheel(wheel: Path) -> None:
    pytest.importorskip("twine")
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=wheel.parent)


def python_of(version: str) -> str | None:
    """An interpreter of that version that starts: on PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture(params=PYTHONS)
def environment_of_its_own(request: pytest.FixtureRequest, wheel: Path) -> Iterator[Path]:
    """A virtual environment of that Python into which the wheel and what it needs are installed; some gigabytes."""
    python = python_of(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} was found")
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv", cwd=folder)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip"]
        probe = subprocess.run(
            [*pip, "download", "-q", "--no-deps", "-d", folder / "probe", "markupsafe"],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        if probe.returncode != 0:
            pytest.skip(f"the index of packages cannot be reached: {probe.stderr.strip().splitlines()[-1:]}")
        run(*pip, "install", "-q", wheel, cwd=folder, seconds=1500, PYTHONPATH="")
        yield folder / "venv" / "bin"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_wheel_works_on_every_python_it_names(environment_of_its_own: Path, tmp_path: Path) -> None:
    python, command = environment_of_its_own / "python", environment_of_its_own / "nsa-doctor"
    assert "No broken requirements" in run(python, "-m", "pip", "check", cwd=tmp_path, PYTHONPATH="")
    assert run(command, "--version", cwd=tmp_path, PYTHONPATH="").startswith("nsa-doctor 0.")
    example = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"))[0]
    (tmp_path / "my_attention.py").write_text(example, encoding="utf-8")
    words = ("run", "--subject", "my_attention:Attention", "--quiet")
    assert "FWD201 causality violation" in run(command, *words, cwd=tmp_path, code=1, seconds=600, PYTHONPATH="")
