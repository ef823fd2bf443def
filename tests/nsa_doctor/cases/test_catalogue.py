"""Which cases there are: ours from wherever the doctor is, and those of packages that say that they have some."""

import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.cases import catalogue
from nsa_doctor.cases.catalogue import cards, folders
from nsa_doctor.core.own_cases import OWN_CASES
from tests.nsa_doctor.conftest import ROOT

CASE = '"""r998 some-symptom\n\nReported: 1.\nSymptom: 2.\nCause: 3.\nCheck: 4.\n"""\n'


class Named(Distribution):
    """A distribution of which only the name is known."""

    def __init__(self, name: str) -> None:
        self.given = name

    @property
    def name(self) -> str:
        return self.given

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has a distribution offer a package with cases."""

    def offer(distribution: str, package: str) -> None:
        point = EntryPoint("any", package, catalogue.ENTRY_POINTS)
        vars(point).update(dist=Named(distribution))
        monkeypatch.setattr(catalogue, "entry_points", lambda group: [point])

    return offer


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first, with a package called as ours is in the checkout."""
    for name in ("regressions", "theircases"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "r998_some_symptom.py").write_text(CASE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "regressions", raising=False)
    return tmp_path


def test_our_cases_need_no_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [])
    assert folders() == [ROOT / "regressions"]
    assert cards()["r007"].module == "nsa_doctor.regressions.r007_zero_gate_init"


def test_a_package_of_the_current_folder_does_not_stand_in_for_ours(others: Path) -> None:
    assert folders() == [ROOT / "regressions"]


def test_an_older_installation_of_the_doctor_offers_nothing_more(others: Path, offered: Any) -> None:
    offered("nsa-doctor", "regressions")
    assert folders() == [ROOT / "regressions"]


def test_cases_of_another_package_are_found_beside_ours(others: Path, offered: Any) -> None:
    offered("their-cases", "theircases")
    assert folders() == [ROOT / "regressions", others / "theircases"]
    assert cards()["r998"].module == "theircases.r998_some_symptom"


def test_our_cases_are_imported_as_a_part_of_the_doctor_from_any_folder(others: Path) -> None:
    program = f"import sys; sys.path.append({str(ROOT)!r}); import {OWN_CASES}.streams as it; print(it.__file__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(ROOT / "regressions" / "streams.py")


def test_no_case_names_itself_by_hand() -> None:
    for path in (ROOT / "regressions").glob("*.py"):
        code = path.read_text(encoding="utf-8").rpartition('"""\n\n')[2]
        assert "regressions." not in code, path.name
