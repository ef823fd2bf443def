"""Checks of other packages: what they may write, and the one sentence for a file that is no check."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core.check_file import CheckFileError, read_check_file
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.isolation.supervisor import Supervisor
from tests.nsa_doctor.conftest import HERE

DOC = '"""FOR101 foreign-check\n\nDetects: a.\nMatters: b.\nFix: c.\n"""\n'
IMPORT = "from nsa_doctor.core.check import Check\n"
PARTS = "run = planted = lambda subject: iter(())\n"
SOUND = f"{DOC}{IMPORT}{PARTS}CHECK = Check(doc=__doc__, run=run, planted=planted)\n"


def check(keywords: str = "", doc: str = DOC, call: str = "Check", imports: str = IMPORT) -> str:
    return f"{doc}{imports}{PARTS}CHECK = {call}(doc=__doc__, run=run, planted=planted, {keywords})\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | bytes], Path]]:
    """`installed(text)` is the path of a check file in a package that offers checks by an entry point."""
    package, facts = tmp_path / "foreign_checks", tmp_path / "foreign-1.0.dist-info"
    for folder in (package, facts):
        folder.mkdir()
    (package / "__init__.py").touch()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[nsa_doctor.checks]\nforeign = foreign_checks\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)  # where a command that goes on would write

    def install(text: str | bytes, name: str = "for101_foreign_check.py") -> Path:
        path = package / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        importlib.invalidate_caches()
        registry._modules.cache_clear()
        registry._read.cache_clear()
        return path

    yield install
    registry._modules.cache_clear()
    registry._read.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[module]


@pytest.mark.parametrize(
    ("call", "imports"),
    [
        ("Check", IMPORT),
        ("check.Check", "from nsa_doctor.core import check\n"),
        ("nsa_doctor.core.check.Check", "import nsa_doctor.core.check\n"),
        ("Illness", "from nsa_doctor.core.check import Check as Illness\n"),
    ],
)
def test_a_check_is_called_by_any_name_it_is_imported_under(
    installed: Callable[..., Path], call: str, imports: str
) -> None:
    keywords = "profile='full', blocked_by=('FWD', 'NAN101'), needs=('loss',), isolate=True, since='1.2'"
    path = installed(check(keywords, call=call, imports=imports))
    entry = registry.entries()["FOR101"]
    assert (entry.path, entry.module) == (path, "foreign_checks.for101_foreign_check")
    assert (entry.profile, entry.blocked_by, entry.needs) == ("full", ("FWD", "NAN101"), ("loss",))
    assert (entry.isolate, entry.examines, entry.explained_by, entry.since) == (True, "module", (), "1.2")
    assert registry.load("FOR101").profile == "full"


def test_a_file_in_another_encoding_that_it_declares_is_read(installed: Callable[..., Path]) -> None:
    installed(b"# coding: latin-1\n" + SOUND.replace("Fix: c", "Fix: \u00fc").encode("latin-1"))
    assert registry.manual("FOR101").fix == "\u00fc."


WRONG = {
    "no Check": (f"{DOC}x = 1\n", "", "it must define CHECK = Check(doc=__doc__, run=run, planted=planted)"),
    "not a call": (f"{DOC}CHECK = 3\n", ":7", "CHECK must be a call of Check"),
    "another call": (f"{DOC}CHECK: int = int(3)\n", ":7", "CHECK must be a call of Check"),
    "a name": (check("blocked_by=FAMILIES"), ":9", "blocked_by must be written out as a literal, got FAMILIES"),
    "a sum": (check("isolate=1 + 'a'"), ":9", "isolate must be written out as a literal, got 1 + 'a'"),
    "a string": (check("blocked_by='FWD'"), ":9", "blocked_by must be a tuple of strings, got 'FWD'"),
    "a list": (check("needs=['loss']"), ":9", "needs must be a tuple of strings, got ['loss']"),
    "numbers": (check("explained_by=(1,)"), ":9", "explained_by must be a tuple of strings, got (1,)"),
    "no code": (check("blocked_by=('',)"), ":9", "blocked_by must be a tuple of strings, got ('',)"),
    "a number": (check("isolate=1"), ":9", "isolate must be True or False, got 1"),
    "a version": (check("since=0.2"), ":9", "since must be a version such as '1.2.0', got 0.2"),
    "no version": (check("since='next'"), ":9", "since must be a version such as '1.2.0', got 'next'"),
    "a profile": (check("profile='fast'"), ":9", "profile must be 'smoke' or 'quick' or 'full', got 'fast'"),
    "a kind": (
        check("examines='modules'"),
        ":9",
        "examines must be 'module' or 'function' or 'checkpoint' or 'run' or 'data'",
    ),
    "a keyword": (check("block_by=()"), ":9", "Check has no keyword block_by; did you mean blocked_by"),
    "keywords": (check("**COMMON"), ":9", "the keywords of Check must be written out, got **COMMON"),
    "positions": (f"{DOC}{IMPORT}CHECK = Check(__doc__)\n", ":8", "Check takes keywords alone"),
    "no docstring": (check(doc=""), ":1", "a check's docstring must start with 'CODE some-name', got ''"),
    "no fix": (check(doc=DOC.replace("Fix: c.", "")), ":1", "FOR101: the docstring must have Detects, Matters and Fix"),
    "another code": (check(doc=DOC.replace("101", "102")), ":1", "its docstring says FOR102, so its name must start"),
    "syntax": (f"{SOUND}def (:\n", ":10", "it is not Python: "),
    "a zero byte": (f"{SOUND}\0", "", "it is not Python: "),
    "no UTF-8": (b"\xff" + SOUND.encode(), "", "it is not Python: (unicode error) 'utf-8' codec can't decode"),
    "too deep": (f"{SOUND}x = {'(' * 1000}\n", "", "it is not Python: "),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_is_no_check_is_one_sentence_and_exit_2(
    installed: Callable[..., Path], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, line, complaint = WRONG[wrong]
    path = installed(text)
    assert serve(["list"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"nsa-doctor: check file {path}{line}")
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["run"], ["explain", "NAN101"], ["go-no-go", "--gate", "ci"]])
def test_every_command_that_reads_checks_names_the_file(
    installed: Callable[..., Path], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = installed(check("blocked_by=FAMILIES"))
    assert serve(command) == 2
    assert f"check file {path}:9: blocked_by must be written out" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckFileError, match=r"for101_x\.py: it cannot be read: No such file or directory"):
        read_check_file(tmp_path / "for101_x.py")


def test_a_code_that_two_files_have_names_both(installed: Callable[..., Path]) -> None:
    first, second = installed(SOUND), installed(SOUND, "for101_other.py")
    with pytest.raises(CheckFileError) as caught:
        registry.entries()
    assert str(caught.value) == f"check file {second}: the code FOR101 is that of {first} too"


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("nowhere", "nowhere must be a package that holds check files"),
        ("nowhere.checks", "nowhere.checks cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("foreign_checks.for101_foreign_check", "must be a package that holds check files"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_named(
    installed: Callable[..., Path], module: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = installed(SOUND)
    points = path.parents[1] / "foreign-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[nsa_doctor.checks]\nforeign = {module}\n")
    assert serve(["list"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nsa-doctor: entry point nsa_doctor.checks: ")
    assert complaint in error


def test_a_check_that_cannot_be_imported_is_named_by_the_child_too(
    installed: Callable[..., Path],
) -> None:
    path = installed(f"{DOC}import nowhere\n{IMPORT}{PARTS}{SOUND.splitlines()[-1]}\n")
    supervisor = Supervisor(ExaminationRequest(config=str(HERE / "small.yaml"), threads=1))
    try:
        assert supervisor.load() == []
        with pytest.raises(UsageError) as caught:
            supervisor.check("FOR101", 20.0)
    finally:
        supervisor.close()
    message = f"check file {path}: it cannot be imported: ModuleNotFoundError: No module named 'nowhere'"
    assert str(caught.value) == message
