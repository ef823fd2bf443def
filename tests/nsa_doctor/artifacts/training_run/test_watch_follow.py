"""`nsa-doctor watch --follow`: waits, tells each finding once when it appears, and ends with the run."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nsa_doctor.artifacts.training_run.reading import RunReader
from nsa_doctor.artifacts.training_run.status import status_of
from nsa_doctor.artifacts.training_run.watch import follow, watch_request
from nsa_doctor.cli.following import FollowingScreen
from nsa_doctor.core.errors import UsageError
from tests.nsa_doctor.artifacts.training_run.runs import beats, codes, write_lines, write_table
from tests.nsa_doctor.conftest import HERE, environment

FINISHED = {"ts": time.time(), "msg": "finished", "step": 60}
_LONGEST = 100.0


class Screen:
    """Remembers what it was shown."""

    def __init__(self):
        self.waits, self.statuses, self.findings = [], [], []

    def waiting(self, sentence):
        self.waits.append(sentence)

    def status(self, status):
        self.statuses.append(str(status))

    def found(self, finding):
        self.findings.append(finding.code)


@pytest.fixture(autouse=True)
def is_judged_at_every_look(request, monkeypatch):
    if "share" not in request.node.name:
        monkeypatch.setattr("nsa_doctor.artifacts.training_run.watch._SHARE_FOR_OTHERS", 0.0)


def following(place, *moments):
    """The report and the screen of someone who follows while one moment after the other comes to pass."""
    request = watch_request(place=place, maps=(), select=None, ignore=None, every=2.0)
    left, screen = list(moments), Screen()

    def pause(_seconds):
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    return follow(request, screen, pause), screen


def added(path, *rows):
    def add():
        with path.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)

    return add


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path):
    place = tmp_path / "run"
    path = place / "heartbeat_rank0.jsonl"
    report, screen = following(
        place, lambda: None, place.mkdir, lambda: write_lines(path, beats(60)), added(path, FINISHED)
    )
    assert [wait.rpartition(": ")[2][:14] for wait in screen.waits] == ["no such folder"] * 2 + [
        "holds nothing of"[:14]
    ]
    assert (report.interrupted, codes(report)) == (False, [])
    assert screen.statuses[-1].startswith("step 59 | loss ")


def test_a_finding_is_reported_once_when_it_appears(tmp_path):
    rows = beats(60)
    path = write_lines(tmp_path / "heartbeat_rank0.jsonl", rows[:50])
    bad = [{**row, "loss": float("nan")} for row in rows[50:]]
    report, screen = following(
        tmp_path, added(path, *bad[:3]), added(path, *bad[3:6]), lambda: None, added(path, FINISHED)
    )
    assert screen.findings == codes(report) == ["TRN201"]


def test_an_interruption_keeps_what_was_found(tmp_path):
    rows = beats(60)
    rows[55]["loss"] = float("nan")
    write_lines(tmp_path / "heartbeat_rank0.jsonl", rows)
    report, screen = following(tmp_path)
    assert (report.interrupted, codes(report), screen.findings) == (True, ["TRN201"], ["TRN201"])


def test_an_interruption_before_anything_was_seen_has_a_report(tmp_path):
    report, screen = following(tmp_path / "missing")
    assert (report.interrupted, report.results, len(screen.waits)) == (True, (), 1)


def test_a_run_that_vanishes_and_comes_back_is_followed_on(tmp_path):
    path = write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(30))
    report, screen = following(
        tmp_path, path.unlink, lambda: write_lines(path, beats(60)), added(path, FINISHED), lambda: None
    )
    assert len(screen.waits) == 1
    assert report.subject["description"].startswith("step 60, finished")


def test_a_mapping_of_no_column_is_not_waited_for(tmp_path):
    write_table(tmp_path / "log.csv", ["step", "loss"], [[1, 2.0]])
    request = watch_request(place=tmp_path, maps=["loss=lss"], select=None, ignore=None, every=2.0)
    with pytest.raises(UsageError, match="did you mean loss"):
        follow(request, Screen(), lambda _seconds: None)


def test_a_run_of_two_ranks_is_over_when_both_have_said_so(tmp_path):
    first, second = (write_lines(tmp_path / f"heartbeat_rank{rank}.jsonl", beats(60, rank=rank)) for rank in (0, 1))
    now = {**FINISHED, "ts": time.time()}
    report, screen = following(tmp_path, added(first, now), lambda: None, added(second, {**now, "rank": 1}))
    assert (report.interrupted, len(screen.statuses)) == (False, 4)


def test_judging_takes_a_share_of_the_time_alone(tmp_path, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.watch.time.perf_counter", lambda: float(next(clock)))
    judgments = []
    monkeypatch.setattr(
        "nsa_doctor.artifacts.training_run.watch._judged", lambda *_: judgments.append(next(clock)) or ()
    )
    write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(60))
    following(tmp_path, *[lambda: None] * 40)
    assert len(judgments) < 12


def test_the_status_line_tells_pace_age_and_what_is_left(tmp_path):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(60, ends=1.7e9, toks_per_s=12_345.6))
    (tmp_path / "env.json").write_text('{"config": {"train": {"steps": 159}}}')
    line = str(status_of(RunReader(tmp_path).read(), 1.7e9 + 64))
    assert line.startswith("step 59/159 | loss ")
    assert line.endswith("| 12,346 tokens/s | last heartbeat 1:05 ago | ETA 1:40")


def test_elsewhere_than_on_a_terminal_a_line_is_plain_and_rare(capsys):
    screen = FollowingScreen(quiet=False)
    for _ in range(5):
        screen.waiting("run: no such folder")
    assert capsys.readouterr().err == "waiting: run: no such folder\n"


def test_quiet_says_nothing(capsys):
    FollowingScreen(quiet=True).waiting("run: no such folder")
    assert capsys.readouterr() == ("", "")


PROGRAM = """
import sys
from pathlib import Path
from nsa_doctor.testing.training_runs import document_of, live
live(document_of(Path(sys.argv[1]), steps=60), {})
"""


def start(*words):
    return subprocess.Popen(
        [sys.executable, *words], cwd=HERE, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_run_that_is_really_going_on_is_followed_to_its_end(tmp_path):
    watching = start(
        *("-m", "nsa_doctor", "watch", str(tmp_path / "run"), "--follow", "--every", "0.5", "--format", "json"),
        *("--ignore", "TRN401,TRN403"),  # of a second's run beside other tests
    )
    training = start("-c", PROGRAM, str(tmp_path / "run"))
    try:
        out, err = watching.communicate(timeout=_LONGEST)
        training.communicate(timeout=_LONGEST)
    finally:
        watching.kill(), training.kill()
    report = json.loads(out)
    assert (watching.returncode, report["decision"]) == (0, "GO"), err
    assert report["subject"]["description"] == "step 60 of 60, finished, from heartbeat_rank0.jsonl"
    assert err.startswith("waiting: ")
    assert any(not line.startswith("waiting: ") for line in err.splitlines()), "nothing was printed of how it stands"


def test_ctrl_c_ends_it_with_a_report_and_130(tmp_path):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", beats(60))
    watching = start("-m", "nsa_doctor", "watch", str(tmp_path), "--follow", "--every", "0.1")
    try:
        assert "step 59" in watching.stderr.readline()
        os.kill(watching.pid, signal.SIGINT)
        out, _ = watching.communicate(timeout=_LONGEST)
    finally:
        watching.kill()
    assert watching.returncode == 130
    assert "interrupted: " in out


def test_nobody_who_reads_is_no_reason_to_break(tmp_path):
    write_lines(tmp_path / "heartbeat_rank0.jsonl", [*beats(60), FINISHED])
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "nsa_doctor", "watch", str(tmp_path), "--follow"]
    answer = subprocess.run(
        command, stdout=write, stderr=write, cwd=HERE, env=environment(), check=False, timeout=_LONGEST
    )
    os.close(write)
    assert answer.returncode == 0
