"""A whole sweep through child processes: hangs, deaths and interruptions cost one length, never the report."""

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Report, Verdict
from nsa_doctor.core.measurement import Point
from nsa_doctor.engine.sweep import SweepRequest, sweep
from nsa_doctor.render import json as as_json
from nsa_doctor.render import terminal as as_text
from tests.nsa_doctor.conftest import HERE, environment, is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder a user stands in holds `faulty`."""
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def swept(spec: str | None = None, lengths: tuple[int, ...] = (15, 17, 20), **options) -> Report:
    config = None if spec else str(HERE / "small.yaml")
    dtypes, values = options.pop("dtypes", ()), options.pop("values", ("normal",))
    examination_request = ExaminationRequest(spec=spec and f"faulty.{spec}", config=config, lengths=lengths, **options)
    return sweep(SweepRequest(examination_request=examination_request, dtypes=dtypes, values=values))


@pytest.mark.usefixtures("here")
def test_the_built_in_subject_is_finite_and_every_fact_reaches_both_formats() -> None:
    report = swept(lengths=(8, 33), dtypes=("float32", "bfloat16"))
    assert report.decision is Decision.GO
    assert report.findings == ()
    assert {result.verdict for result in report.results} == {Verdict.PASS}
    assert len(report.measurements) == 2 * 2 * 3
    record = json.loads(as_json.render(report), parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    assert (record["format"], record["version"], record["decision"]) == ("nsa-doctor-report", 1, "GO")
    names = [census["name"] for census in record["measurements"][0]["censuses"]]
    assert names == ["compressed", "selected", "sliding", "gated", "output", "gradients"]
    text = as_text.render(report)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("finite") >= 2 * 2 * 5
    assert "\x1b" not in text


@pytest.mark.usefixtures("here")
def test_boundaries_come_from_the_geometry() -> None:
    report = swept(lengths=(20,), boundaries_up_to=20, forward_only=True)
    measured = {measurement.point.length for measurement in report.measurements}
    assert {1, 2, 3, 7, 8, 9, 15, 16, 17, 19, 20, 21} <= measured
    assert report.decision is Decision.GO


@pytest.mark.usefixtures("here")
def test_without_a_dtype_the_subjects_own_is_examined_and_reported() -> None:
    report = swept("unusual:in_bfloat16", lengths=(16,))
    assert {measurement.point.dtype for measurement in report.measurements} == {"bfloat16"}
    assert report.decision is Decision.GO
    assert "parameters in bfloat16" in " ".join(as_text.render(report).split())


@pytest.mark.usefixtures("here")
def test_a_hang_is_a_timeout_with_its_line_and_the_other_lengths_go_on() -> None:
    report = swept("unruly:hangs", timeout=1.0)
    (finding,) = report.findings
    assert (finding.code, finding.where.module, finding.where.function) == ("HNG101", "part", "_hangs_at_17")
    assert is_marked(finding.where.file, finding.where.line)
    assert finding.control == "returns at S=15 and 20"
    assert {result.verdict for result in report.results if result.findings} == {Verdict.TIMEOUT}
    assert [m.is_finite for m in report.measurements if m.point.length != 17] == [True] * 6
    assert report.decision is Decision.NO_GO


@pytest.mark.usefixtures("here")
def test_a_hang_while_the_input_is_found_out_counts_at_its_length() -> None:
    report = swept("unruly:hangs", lengths=(17, 18), timeout=1.0)
    (finding,) = report.findings
    assert (finding.code, finding.evidence["lengths"], finding.where.module_text) == ("HNG101", "17", "part (Part)")
    assert Point(length=18, mode="eval") in {m.point for m in report.measurements if m.is_finite}


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_three_hangs_are_enough() -> None:
    report = swept("unruly:sleeps", lengths=(1, 2, 3, 4, 5), timeout=0.5)
    (finding,) = report.findings
    assert finding.evidence["lengths"] == "1,2,3"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "the process ended with exit code 7"),
        ("segfaults", "the process died by signal 11 (SIGSEGV)"),
        ("writes_everywhere", "the process wrote into"),
    ],
)
def test_a_death_is_a_finding_and_the_other_lengths_go_on(name: str, message: str) -> None:
    report = swept(f"unruly:{name}")
    (finding,) = report.findings
    assert finding.message.startswith(message)
    assert [m.is_finite for m in report.measurements if m.point.length != 17] == [True] * 6
    if name == "segfaults":
        assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.usefixtures("here")
def test_out_of_memory_is_unknown_and_neither_go_nor_no_go() -> None:
    report = swept("unruly:out_of_memory")
    assert report.findings == ()
    assert report.decision is Decision.UNKNOWN
    assert "not checked" in as_text.render(report)


@pytest.mark.usefixtures("here")
def test_a_factory_that_raises_is_a_finding_of_the_subject() -> None:
    (finding,) = swept("unruly:broken_factory").findings
    assert finding.message == "the subject raises KeyError: 'no such preset' in build whatever the length"
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.usefixtures("here")
def test_a_subject_that_cannot_be_imported_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be imported: ModuleNotFoundError"):
        swept("unimportable:make")


def test_a_subject_that_prints_leaves_standard_output_alone(doctor: Doctor) -> None:
    answer = doctor("sweep", "--seq", "16", "--subject", "faulty.healthy:rude", "--format", "json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["notes"][0] == "the subject changes the default dtype"
    assert "hello" not in answer.stdout + answer.stderr


def test_what_is_not_finite_exits_with_1_and_the_file_holds_the_same_facts(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    words = ["--seq", "15,16", "--subject", "faulty.forward:empty_row", "--output", str(path)]
    answer = doctor("sweep", *words)
    assert answer.returncode == 1
    (finding,) = [finding for result in json.loads(path.read_text())["results"] for finding in result["findings"]]
    assert finding["where"]["module"] == "part"
    line = f"{Path(finding['where']['file']).relative_to(HERE)}:{finding['where']['line']}"
    assert f"{line} in _softmax_of_an_empty_row" in answer.stdout
    assert finding["repro"] in answer.stdout
    assert "measured: S=16 float32 no_grad: not finite" in answer.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def start(folder: Path, timeout: str = "60") -> subprocess.Popen[str]:
    """A sweep that measures one length and then hangs; its child writes its process id into the folder."""
    command = [sys.executable, "-m", "nsa_doctor", "sweep", "--seq", "15,17,20", "--timeout", timeout]
    command += ["--subject", "faulty.unruly:tells_its_process", "--input", "embeddings"]
    env = {**environment(), "FAULTY_FOLDER": str(folder)}
    return subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child_of(process: subprocess.Popen[str], folder: Path) -> int:
    """The child's process id, once it hangs."""
    assert process.stderr is not None
    assert "S=15" in process.stderr.readline()
    deadline = time.monotonic() + 60
    while not (folder / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return int((folder / "pid").read_text())


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def wait_for_end(process: int) -> bool:
    deadline = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGINT], 130),
        ([signal.SIGTERM], 143),
        pytest.param([signal.SIGINT] * 5, 130, marks=pytest.mark.full),
        pytest.param([signal.SIGHUP], 129, marks=pytest.mark.full),
    ],
)
def test_an_interruption_keeps_what_was_measured_and_ends_the_child(
    tmp_path: Path, numbers: list[int], code: int
) -> None:
    with start(tmp_path) as process:
        child = child_of(process, tmp_path)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.01)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "interrupted: what was measured stands above" in output
    assert output.count("finite") >= 2
    assert "Traceback" not in output + errors
    assert wait_for_end(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel ends orphans on Linux")
def test_a_killed_doctor_leaves_no_orphan(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        child = child_of(process, tmp_path)
        process.kill()
        process.wait(timeout=30)
    assert wait_for_end(child)


def test_json_says_what_is_not_finite_as_text() -> None:
    report = Report(
        command="sweep",
        subject={"name": "x\ud800"},
        options={"a": math.nan, "b": [math.inf, -math.inf]},
        environment={},
    )
    record = json.loads(as_json.render(report), parse_constant=pytest.fail)
    assert record["options"] == {"a": "NaN", "b": ["Infinity", "-Infinity"]}
    assert record["decision"] == "UNKNOWN"


def test_a_name_with_escapes_reaches_no_terminal() -> None:
    report = Report(command="sweep", subject={"name": "evil\x1b[2J[bold]\n"}, options={"seed": 0}, environment={})
    text = as_text.render(report, colour=True)
    assert "\x1b[2J" not in text
    assert "evil\\x1b[2J[bold]\\n" in text
