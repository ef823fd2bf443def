"""Every command where streams are closed or full, the folder is gone, or the output cannot be written: a sentence."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.cli.delivery import Delivery, deliver_bundle
from nsa_doctor.cli.main import app, serve
from nsa_doctor.cli.option_groups import ReportOptions
from nsa_doctor.core import registry
from nsa_doctor.core.writing import CannotWriteError, check_writable
from nsa_doctor.isolation import start
from nsa_doctor.render import bundle
from tests.nsa_doctor.reports import examined

COMMANDS = sorted(str(each.name or getattr(each.callback, "__name__", "")) for each in app.registered_commands)
TALKING = [  # what prints without examining anything
    ["--help"],
    ["--version"],
    ["list"],
    ["explain"],
    ["explain", "NAN101"],
    ["render", "--schema"],
    ["regressions", "--format", "md"],
    *([command, "--help"] for command in COMMANDS),
]
WRITING = [  # each takes --output
    ["anomaly"],
    ["data", "--config", "train_showcase"],
    ["fuzz", "ranges"],
    ["gate-init"],
    ["gate-stats", "gone.pt"],
    ["go-no-go"],
    ["render", "--schema"],
    ["run"],
    ["smoke"],
    ["sweep"],
    ["throughput"],
    ["watch", "."],
]
PLACES = ["too-long", "folder", "folder-is-missing", "folder-is-a-file", "zero-byte", "circle"]
IDS: dict[str, Any] = {"ids": " ".join}


@pytest.fixture(autouse=True)
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be examined before the command line is refused."""

    def started(*words: object, **_: object) -> None:
        raise AssertionError(f"a child was started: {words}")

    monkeypatch.setattr(start, "ForkedProcess", started)
    monkeypatch.setattr(subprocess.Popen, "__init__", started)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From its call on, nobody reads standard output."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        yield lambda: monkeypatch.setattr(sys, "stdout", file)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From its call on, standard output is full."""
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as file:
        yield lambda: monkeypatch.setattr(sys, "stdout", file)


@pytest.mark.parametrize("words", TALKING, **IDS)
def test_a_full_standard_output_is_one_sentence(
    words: list[str], full: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    full()
    assert serve(words) == 2
    assert capsys.readouterr().err == "nsa-doctor: standard output: cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", TALKING, **IDS)
def test_a_reader_that_leaves_changes_nothing(
    words: list[str], unread: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    unread()
    assert serve(words) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture(params=PLACES)
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A place where nothing can be written."""
    match request.param:
        case "too-long":
            return tmp_path / ("a" * 5000)
        case "folder-is-missing":
            return Path("/proc/nowhere/report.json")
        case "folder-is-a-file":
            (tmp_path / "file").touch()
            return tmp_path / "file" / "report.json"
        case "zero-byte":
            return tmp_path / "a\0b"
        case "circle":
            (tmp_path / "circle").symlink_to(tmp_path / "circle")
            return tmp_path / "circle" / "report.json"
    (tmp_path / "report.json").mkdir()
    return tmp_path


@pytest.mark.parametrize("words", WRITING, **IDS)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    words: list[str], unwritable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve([*words, "--output", str(unwritable)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nsa-doctor: ")
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 500


@pytest.fixture
def deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


@pytest.mark.parametrize("words", TALKING, **IDS)
def test_what_examines_nothing_works_in_a_deleted_folder(words: list[str], deleted: None) -> None:
    assert serve(words) == (2 if words[0] == "regressions" and "--help" not in words else 0)


@pytest.mark.parametrize("words", [words for words in WRITING if words[0] not in ("render", "watch")], **IDS)
def test_no_examination_is_begun_in_a_deleted_folder(
    words: list[str], deleted: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(words) == 2
    assert capsys.readouterr().err == "nsa-doctor: the current folder was deleted; change to one that exists\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_machine_that_has_no_more_is_no_fault_of_the_doctors(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise OSError(number, os.strerror(number), "/tmp/place")

    monkeypatch.setattr(registry, "manuals", refused)
    assert serve(["list"]) == 2
    assert capsys.readouterr().err.startswith(f"nsa-doctor: /tmp/place: {os.strerror(number)}: ")


@pytest.mark.parametrize("words", [["gate-stats"], ["watch"]], ids=lambda words: words[0])
def test_what_is_examined_is_not_lost_to_its_report(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examined = tmp_path / "log.jsonl"
    examined.write_text("{}")
    link = tmp_path / "report.json"
    link.symlink_to(examined)
    for output in (examined, link):
        assert serve([*words, str(examined), "--output", str(output), "--format", "json"]) == 2
        assert f"--output {output} is what is examined, and would be lost" in capsys.readouterr().err
    assert examined.read_text() == "{}"


def test_a_log_in_the_folder_of_a_run_is_not_lost_to_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "training.csv").write_text("step,loss\n1,2\n")
    assert serve(["watch", str(tmp_path), "--output", str(tmp_path / "training.csv"), "--format", "md"]) == 2
    assert "would be lost" in capsys.readouterr().err


def test_no_room_for_temporary_files_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(Delivery, "asked", nowhere)
    assert serve(["gate-stats", "gone.pt"]) == 2
    assert "name a folder in TMPDIR" in capsys.readouterr().err


def refuse(*_: object) -> None:
    raise CannotWriteError("report.md: cannot be written: No space left on device")


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "printed"])
def test_a_report_that_cannot_be_written_is_printed_in_its_format(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver = Delivery.asked(ReportOptions(form="md", output=tmp_path / "report.md", quiet=quiet))
    monkeypatch.setattr("nsa_doctor.cli.delivery.write_whole", refuse)
    with pytest.raises(CannotWriteError):
        deliver(examined())
    assert "## nsa-doctor: NO-GO" in capsys.readouterr().out


def test_a_bundle_that_cannot_be_written_is_printed_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "write_bundle", refuse)
    with pytest.raises(CannotWriteError):
        deliver_bundle(examined(), tmp_path, traceback=False)
    assert '\n{\n  "format": "nsa-doctor' in capsys.readouterr().out


def test_a_report_that_cannot_be_printed_is_still_written(tmp_path: Path, full: Callable[[], None]) -> None:
    full()
    deliver = Delivery.asked(ReportOptions(form="md", output=tmp_path / "report.md", quiet=False))
    with pytest.raises(CannotWriteError, match="standard output: cannot be written"):
        deliver(examined())
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("## nsa-doctor: NO-GO")


def test_a_folder_that_was_there_stays_and_one_that_was_not_is_left_to_the_report(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("old", "old/new", "new/newer"):
        bundle.check_folder(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    bundle.write_bundle(tmp_path / "new" / "newer", examined())
    bundle.check_folder(tmp_path / "new" / "newer")
    assert sorted(path.name for path in (tmp_path / "new" / "newer").iterdir()) == sorted(bundle.FILES)


@pytest.mark.parametrize("check", [check_writable, bundle.check_folder], ids=["file", "folder"])
def test_a_long_path_is_shown_in_part(check: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(CannotWriteError) as caught:
        check(tmp_path / ("a" * 5000))
    assert len(str(caught.value)) < 400
