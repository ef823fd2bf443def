"""`nsa-doctor render`: every format from a file or a pipe, at once, and one sentence for what cannot be rendered."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.main import serve
from nsa_doctor.cli.option_groups import ReportOptions
from nsa_doctor.core.writing import CannotWriteError
from nsa_doctor.render import json as as_json
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import parse_report
from nsa_doctor.render.report_format.document import json_schema
from tests.nsa_doctor.conftest import environment
from tests.nsa_doctor.reports import examined, ruled

Doctor = Callable[..., subprocess.CompletedProcess[str]]
WRITTEN = as_json.render(ruled())
TEXTS = sorted(set(FORMATS) - {"html"})


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(WRITTEN, encoding="utf-8")
    return path


def complaint(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 2) -> str:
    """What a command line that fails says: one line."""
    assert serve(["render", *map(str, words)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nsa-doctor: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("form", TEXTS)
def test_a_report_is_rendered_and_the_exit_code_says_that_it_was(
    form: str, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["render", str(report), "--to", form]) == 0
    assert capsys.readouterr().out == render_as(parse_report(WRITTEN), form)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_every_format_is_written_whole(form: str, report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in FORMATS[form].endings:
        output = report.with_name(f"out{ending}")
        assert serve(["render", str(report), "--output", str(output)]) == 0
        assert output.read_text(encoding="utf-8") == render_as(parse_report(WRITTEN), form)
    assert capsys.readouterr().out == ""
    assert not [path for path in report.parent.iterdir() if path.name.startswith(".")]


def test_a_format_that_is_named_goes_before_the_files_name(report: Path) -> None:
    output = report.with_name("out.json")
    assert serve(["render", str(report), "--to", "md", "--output", str(output)]) == 0
    assert output.read_text(encoding="utf-8").startswith("## nsa-doctor: NO-GO")


def test_nothing_heavy_is_imported_and_no_folder_is_needed(report: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys; from nsa_doctor.cli.main import serve\n"
        f"codes = [serve(['render', {str(report)!r}, '--to', form]) for form in {TEXTS}]\n"
        "assert codes == [0] * len(codes), codes\n"
        "assert not {'torch', 'nsa', 'numpy', 'hypothesis'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(empty.iterdir())


def test_a_pipe_is_read_and_written(doctor: Doctor) -> None:
    done = doctor("render", "-", "--to", "md", input=WRITTEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == render_as(parse_report(WRITTEN), "md")
    done = doctor("render", "-", input=WRITTEN[:1000])
    assert done.returncode == 2
    assert done.stderr == "nsa-doctor: standard input: ends in the middle, after 1000 characters: it was cut off\n"


def test_a_reader_that_leaves_early_is_no_error(report: Path) -> None:
    command = f"{sys.executable} -m nsa_doctor render {report} --to json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False, cwd=report.parent
    )
    assert (done.stdout, done.stderr) == ("{0\n", "")


def test_the_schema_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["render", "--schema"]) == 0
    assert capsys.readouterr().out == json_schema()
    assert serve(["render", "--schema", "--output", str(tmp_path / "schema.json")]) == 0
    assert json.loads((tmp_path / "schema.json").read_text())["$id"] == "urn:nsa-doctor:report:1"
    assert "renders nothing" in complaint(capsys, "report.json", "--schema")


def test_what_cannot_be_rendered_is_one_sentence(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "FILE is missing" in complaint(capsys)
    assert "nowhere.json: there is no such file" in complaint(capsys, tmp_path / "nowhere.json")
    assert "is a folder" in complaint(capsys, tmp_path)
    assert "--to cannot be 'htm'" in complaint(capsys, report, "--to", "htm")
    assert "allowed are terminal, json" in complaint(capsys, report, "--to", "pdf")
    assert "cannot be written" in complaint(capsys, report, "--output", "/nowhere/report.md")
    assert "is a folder" in complaint(capsys, report, "--output", tmp_path)
    for content, sentence in ((b"", "is empty"), (b"\x80\x02c", "is not JSON in UTF-8"), (b"{", "was cut off")):
        report.write_bytes(content)
        assert sentence in complaint(capsys, report)
    hostile = tmp_path / "a\x1b[31m\nb"
    assert "\x1b" not in complaint(capsys, hostile)


def test_a_report_is_not_lost_to_a_picture_of_it(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = report.with_name("link.md")
    link.symlink_to(report)
    for output in (report, link, report.parent / "." / "report.json"):
        assert "is the report itself" in complaint(capsys, report, "--to", "md", "--output", output)
    assert report.read_text(encoding="utf-8") == WRITTEN
    assert serve(["render", str(report), "--to", "json", "--output", str(report)]) == 0
    assert report.read_text(encoding="utf-8") == WRITTEN


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_pipe_that_nobody_writes_into_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nsa_doctor.render.reading._PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    assert "nothing was written into it" in complaint(capsys, tmp_path / "pipe")


def test_a_named_pipe_is_read_to_its_end(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(report.read_bytes()))
    writer.start()
    assert serve(["render", str(tmp_path / "pipe"), "--to", "json"]) == 0
    writer.join()
    assert capsys.readouterr().out == report.read_text()


def test_a_full_disk_is_reported(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No space left on device" in complaint(capsys, report, "--to", "md", "--output", "/dev/full", code=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_reported(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.chmod(0)
    assert "Permission denied" in complaint(capsys, report)


@pytest.mark.parametrize(
    ("form", "name", "starts"),
    [
        (None, "a.md", "## nsa-doctor"),
        (None, "a.sarif", "{"),
        (None, "junit.xml", "<?xml"),
        (None, "a.log", "my_pkg"),
        ("github", "a.log", "::error"),
    ],
)
def test_other_commands_write_every_format_too(
    form: str | None, name: str, starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa_doctor.core.signals.ignore_signals", lambda: None)
    deliver = Delivery.asked(ReportOptions(form=form, output=tmp_path / name, quiet=True))
    assert deliver(examined()) == 1
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(starts)


def test_a_format_of_no_kind_is_refused_by_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["run", "--format", "pdf"]) == 2
    assert "--format cannot be 'pdf': allowed are terminal, json" in capsys.readouterr().err
    assert serve(["env", "--format", "sarif"]) == 2
    assert "--format cannot be 'sarif': allowed are terminal, json" in capsys.readouterr().err


def test_delivery_refuses_what_it_could_not_write() -> None:
    with pytest.raises(CannotWriteError, match="cannot be written"):
        Delivery.asked(ReportOptions(output=Path("/nowhere/a.md"), quiet=True))
