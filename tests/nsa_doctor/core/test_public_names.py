"""What adapters and checks of users import: names of the package itself, and the module paths that they had."""

import importlib
import subprocess
import sys
from importlib.metadata import version

import pytest

import nsa_doctor

FORMER = {  # what code of users imports, and where it lies
    "nsa_doctor.adapter:Adapter": "nsa_doctor.adapters.adapter:Adapter",
    "nsa_doctor.check:Check": "nsa_doctor.core.check:Check",
    "nsa_doctor.finding:Finding": "nsa_doctor.core.finding:Finding",
    "nsa_doctor.measurement:Place": "nsa_doctor.core.measurement:Place",
    "nsa_doctor.repro:again": "nsa_doctor.core.reproduce:command_for",
    "nsa_doctor.runner:NotApplicableError": "nsa_doctor.core.errors:NotApplicableError",
    "nsa_doctor.subject:Subject": "nsa_doctor.subject.contract:Subject",
}


def named(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", nsa_doctor.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(nsa_doctor, name).__name__ == name


def test_completion_offers_every_public_name() -> None:
    assert {*nsa_doctor.__all__, "__version__", "testing"} <= set(dir(nsa_doctor))


def test_the_version_is_the_one_that_is_installed() -> None:
    assert nsa_doctor.__version__ == version("nsa-doctor")


def test_testing_needs_no_import_of_its_own() -> None:
    program = "import nsa_doctor; nsa_doctor.testing.run_check"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="module 'nsa_doctor' has no attribute 'Doctor'"):
        _ = nsa_doctor.Doctor


@pytest.mark.parametrize(("former", "home"), FORMER.items(), ids=FORMER)
def test_a_former_path_leads_to_the_same_thing(former: str, home: str) -> None:
    assert named(former) is named(home)


def test_a_path_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nsa_doctor.adaptor")


def test_the_package_alone_does_not_import_torch() -> None:
    program = "import sys, nsa_doctor, nsa_doctor.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
