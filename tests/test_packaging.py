"""The wheel holds what the command needs, and works from an empty folder."""

import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
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
    packages = ("nsa", "nsa_doctor", "regressions")
    modules = {str(path.relative_to(ROOT)) for name in packages for path in (ROOT / name).rglob("*.py")}
    schemas = {"nsa_doctor/render/report.schema.json"}
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "nsa_doctor" / "render" / "page").iterdir()}
    pages |= {"nsa_doctor/render/score.json", "regressions/README.md"}
    configs = {f"nsa/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"nsa/configs/m7c_125m_fast_log.yaml", "nsa/configs/train_showcase.yaml"} <= configs
    assert names == modules | configs | schemas | pages


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
