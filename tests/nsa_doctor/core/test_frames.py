"""Which line of a stack is the subject's."""

import sys
import sysconfig
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import nsa_doctor
from nsa_doctor.core.frames import FrameFilter, Line, top_package

TORCH = str(Path(torch.__file__).parent)
STDLIB = sysconfig.get_paths()["stdlib"]
DOCTOR = str(Path(nsa_doctor.__file__).parent)
OWN = Line(file="/home/me/model.py", line=3, function="forward")


def line(file: str) -> Line:
    return Line(file=file, line=1, function="f")


def test_the_innermost_own_line_is_chosen() -> None:
    outer = Line(file="/home/me/model.py", line=9, function="outer")
    inner = [line("<string>"), line(f"{TORCH}/nn/functional.py"), line(f"{STDLIB}/contextlib.py")]
    assert FrameFilter().deepest([*inner, OWN, outer]) == OWN


def test_a_library_is_blamed_only_where_there_is_no_own_line() -> None:
    library = line("/venv/lib/python3.11/site-packages/attention_library/core.py")
    assert FrameFilter().deepest([library, OWN]) == OWN
    assert FrameFilter().deepest([library]) == library


def test_the_doctor_is_never_to_blame_in_whichever_folder_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = "/venv/lib/python3.11/site-packages/nsa_doctor"
    monkeypatch.setattr("nsa_doctor.core.package.PACKAGE_ROOT", Path(installed))
    frames = FrameFilter()
    assert frames.rank(f"{installed}/registry.py") == 0
    assert frames.rank(f"{installed}/checks/fwd/fwd101.py") == 3  # what a check plants
    assert frames.rank(f"{installed}/regressions/r001.py") == 3  # what a case plants
    assert frames.rank("/venv/lib/python3.11/site-packages/nsa_doctor_too/core.py") == 2


def test_a_subject_among_our_cases_does_not_make_the_doctor_a_subject() -> None:
    frames = FrameFilter(top_package("nsa_doctor.regressions.r001_range_iteration_hang:planted_walk"))
    files = ("regressions/r001.py", "checks/fwd/fwd101.py", "core/registry.py", "probes/perform.py", "cases/case.py")
    assert [frames.rank(f"{DOCTOR}/{file}") for file in files] == [3, 3, 0, 0, 0]


THREADING = threading.__file__


def test_torchs_modules_are_the_last_resort() -> None:
    layer = line(f"{TORCH}/nn/modules/linear.py")
    assert FrameFilter().deepest([line(f"{TORCH}/_tensor.py"), layer]) == layer
    assert FrameFilter().deepest([line(f"{TORCH}/_tensor.py"), line(f"{DOCTOR}/probes/perform.py")]) is None


def test_code_that_torch_compile_wrote_is_nobodys() -> None:
    assert FrameFilter().rank("/tmp/torchinductor_me/ab/cabcd.py") == 0


def test_a_package_is_read_off_what_names_a_factory() -> None:
    assert [top_package(spec) for spec in (None, "a.b:make", "a:make.it")] == [(), ("a",), ("a",)]


def test_a_planted_bug_counts_as_the_subjects() -> None:
    assert FrameFilter().rank(f"{DOCTOR}/checks/nan/nan101_output_not_finite.py") == 3


def test_a_dump_is_read_from_the_doctors_own_thread() -> None:
    dump = f"""Thread 0x01 (most recent call first):
  File "/home/me/worker.py", line 8 in run

Current thread 0x02 (most recent call first):
  File "{TORCH}/nn/functional.py", line 5 in softmax
  File "/home/me/model.py", line 3 in forward
  File "{TORCH}/nn/modules/module.py", line 5 in _call_impl
  File "{DOCTOR}/probes/perform.py", line 7 in perform
"""
    assert FrameFilter().of_dump(dump)[0] == OWN


def test_a_thread_of_a_case_is_not_the_doctors_own() -> None:
    dump = f"""Thread 0x01 (most recent call first):
  File "{DOCTOR}/regressions/r001.py", line 8 in reads_ahead

Current thread 0x02 (most recent call first):
  File "/home/me/model.py", line 3 in forward
  File "{DOCTOR}/probes/perform.py", line 7 in perform
"""
    assert FrameFilter().of_dump(dump)[0] == OWN


def test_threads_that_compute_are_distinguished_from_those_that_wait_and_from_the_doctors() -> None:
    dump = f"""Thread 0x01 (most recent call first):
  File "/home/me/worker.py", line 8 in spin
  File "{THREADING}", line 982 in run

Thread 0x03 (most recent call first):
  File "{THREADING}", line 331 in wait
  File "/home/me/worker.py", line 20 in takes

Current thread 0x02 (most recent call first):
  File "/home/me/model.py", line 3 in forward
  File "{DOCTOR}/probes/perform.py", line 7 in perform
"""
    assert FrameFilter().busy_in_dump(dump) == [Line(file="/home/me/worker.py", line=8, function="spin")]


def test_a_dump_without_a_line_of_the_subjects_gives_none() -> None:
    assert FrameFilter().of_dump("Fatal Python error: Aborted\n") == []


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([Path("/lib/attention")], id="paths"),
        pytest.param([b"/lib/attention/"], id="bytes"),
        pytest.param("/lib/attention", id="one string"),
        pytest.param(Path("/lib/attention"), id="one path"),
        pytest.param(("", None, 3, "/lib/attention"), id="odd entries"),
    ],
)
def test_a_package_may_search_in_anything_that_names_a_folder(places: object, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("attention_library")
    package.__spec__ = ModuleSpec("attention_library", None, is_package=True)
    package.__spec__.submodule_search_locations = places  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "attention_library", package)
    frames = FrameFilter(("attention_library",))
    assert frames.rank("/lib/attention/core.py") == 3
    assert frames.rank("/lib/attention_too/site-packages/core.py") == 2


def test_a_namespace_package_is_the_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parted_attention").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert FrameFilter(("parted_attention",)).rank(f"{tmp_path}/parted_attention/core.py") == 3


def test_a_package_that_searches_nowhere_is_no_ones_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("attention_library")
    package.__spec__ = ModuleSpec("attention_library", None, is_package=True)
    package.__spec__.submodule_search_locations = 3  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "attention_library", package)
    assert FrameFilter(("attention_library",)).rank(f"{STDLIB}/contextlib.py") == 0


def test_a_single_file_may_be_named_by_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("attention_file")
    module.__spec__ = ModuleSpec("attention_file", None, origin=Path("/lib/attention_file.py"))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "attention_file", module)
    assert FrameFilter(("attention_file",)).rank("/lib/attention_file.py") == 3


def _in_file(name: str, source: str, **names: object) -> dict[str, object]:
    """What a file of that name defines."""
    defined = dict(names)
    exec(compile(source, name, "exec"), defined)
    return defined


def test_the_nearest_own_line_comes_first_and_the_line_of_the_library_second() -> None:
    library = _in_file("/env/site-packages/einops/einops.py", "def split(x):\n    raise ValueError(x)\n")
    own = _in_file("/project/mine.py", "def forward(x):\n    return split(x)\n", split=library["split"])
    with pytest.raises(ValueError, match="3") as raised:
        own["forward"](3)  # type: ignore[operator]
    frames = FrameFilter()
    assert frames.of_traceback(raised.tb) == Line(file="/project/mine.py", line=2, function="forward")
    assert frames.library_of_traceback(raised.tb) == "/env/site-packages/einops/einops.py:2"


def test_what_the_subject_is_made_of_is_no_library() -> None:
    frames = FrameFilter(packages=("einops",))
    assert frames.is_library("/env/site-packages/einops/einops.py")  # another installation of it
    assert not frames.is_library(torch.__file__)
    assert not frames.is_library("/project/mine.py")
