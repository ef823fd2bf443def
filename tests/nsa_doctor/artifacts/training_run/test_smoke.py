"""`nsa-doctor smoke`: a short run that is killed half-way and resumed, and the verdict on it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from nsa_doctor.artifacts.training_run.smoke import SmokeRequest, train
from nsa_doctor.cli.main import serve
from tests.nsa_doctor.conftest import environment

SMALL = {
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16, "vocab_size": 256},
    "nsa": {"l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 16},
    "data": {"dataset": "synthetic", "tokenizer": "byte"},
    "train": {"seq_len": 64, "batch_size": 8, "lr": 2e-2, "grad_clip": 1.0, "log_every": 20, "eval_batches": 2},
}
STEPS = "160"  # enough that the run is not over before it is killed, on a busy machine too
GATE = """
profile: smoke
require:
  - codes: [FWD101, CKP101, TRN103, TRN601]
    because: a test asks for these
limits:
  - measure: steps
    at_least: 60
    because: a test makes so many
  - measure: resumes
    at_least: 1
    because: it is killed half-way
  - measure: loss_ratio
    at_most: 0.95
    because: the loss has to fall
"""


@pytest.fixture
def smoke(tmp_path):
    """`smoke(words, train={…})`: exit code and report of one command line."""

    def go(*words, train=None):
        config, gate, output = tmp_path / "small.yaml", tmp_path / "gate.yaml", tmp_path / "out"
        config.write_text(yaml.safe_dump(SMALL | {"train": SMALL["train"] | (train or {})}))
        gate.write_text(GATE)
        given = ["--config", str(config), "--gate", str(gate), "--output", str(output), "--steps", STEPS, "--jobs", "1"]
        code = serve(["smoke", "--quiet", *given, *words])
        report = output / "report.json"
        return code, json.loads(report.read_text()) if report.is_file() else None, output / "run"

    return go


def beats(folder):
    return [json.loads(line) for line in (folder / "heartbeat_rank0.jsonl").read_text().splitlines()]


def test_a_healthy_run_is_killed_resumed_stopped_resumed_and_let_through(smoke, capsys):
    code, report, folder = smoke()
    assert (code, report["verdict"]["decision"]) == (0, "GO"), capsys.readouterr().out
    logged = beats(folder)
    pids = {beat["pid"] for beat in logged}
    assert len(pids) == 3
    (_, stopped) = (beat["msg"] for beat in logged if beat["msg"].startswith("resumed from "))
    assert 81 <= int(stopped.removeprefix("resumed from step_")) <= 96
    assert [each["verdict"] for each in report["results"] if each["code"] == "TRN601"] == ["PASS"]
    losses = {}
    for beat in logged:
        if beat["msg"] == "step":
            losses.setdefault(beat["step"], []).append(beat["loss"])
    assert set(losses) == set(range(1, 161))
    twice = {step: each for step, each in losses.items() if len(each) == 2}
    assert twice
    assert all(first == second for first, second in twice.values())


@pytest.mark.full
def test_a_run_that_does_not_learn_is_no_go(smoke):
    code, report, _ = smoke("--set", "train.lr=1.0e-9")
    assert (code, report["verdict"]["decision"]) == (1, "NO-GO")
    assert "last tenth of the losses" in json.dumps(report["verdict"])


@pytest.mark.full
def test_a_run_that_ends_early_is_reported_with_its_reason(smoke):
    code, report, _ = smoke("--set", "train.lr=1.0e+30", "--set", "train.grad_clip=0.0")
    assert (code, report["verdict"]["decision"]) == (1, "NO-GO")
    (note,) = (note for note in report["notes"] if note.startswith("the smoke run: stopped: "))
    assert "held NaN before the step" in note or " is born in " in note


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "9"], "--steps must be from 10 to 1000000, got 9"),
        (["--set", "train.nothing=1"], "train.nothing"),
        pytest.param(["--dataset", "text:nowhere.txt"], "nowhere.txt", marks=pytest.mark.full),
        (["--config", "nothing"], "--config nothing"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(smoke, capsys, words, message):
    code, report, _ = smoke(*words)
    assert (code, report) == (2, None)
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_a_trainer_that_leaves_nothing_to_read_is_no_go_with_its_sentence(smoke, monkeypatch):
    def fails(request, say):
        request.folder.mkdir(parents=True)
        return "ZeroDivisionError: integer modulo by zero"

    monkeypatch.setattr("nsa_doctor.cli.commands.smoke.train", fails)
    code, report, _ = smoke()
    assert (code, report["verdict"]["decision"]) == (1, "NO-GO")
    messages = [each["message"] for result in report["results"] for each in result["findings"]]
    assert "the run ended after step 0: ZeroDivisionError: integer modulo by zero" in messages


def test_an_earlier_run_is_not_written_over(smoke, tmp_path, capsys):
    (tmp_path / "out" / "run").mkdir(parents=True)
    assert smoke()[0] == 2
    assert "holds an earlier run" in capsys.readouterr().err


@pytest.mark.full
def test_a_long_warm_up_is_made_shorter_and_reported(smoke):
    _, report, folder = smoke(train={"steps": 5000, "warmup_steps": 2000})
    assert any(note.startswith("warm-up of 16 steps in place of 2000") for note in report["notes"])
    rates = [beat["lr"] for beat in beats(folder) if beat["msg"] == "step"]
    assert max(rates) == pytest.approx(2e-2)


def test_a_silent_trainer_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("nsa_doctor.artifacts.training_run.smoke._SECONDS_TO_START", 0.5)
    missing = tmp_path / "pipe.yaml"
    os.mkfifo(missing)  # the trainer waits for a configuration that nobody writes
    request = SmokeRequest(config=missing, folder=tmp_path / "run", steps=10, patience=0.5, quiet=True)
    start = time.monotonic()
    assert train(request, lambda message: None) == "the trainer was killed after 0.5 s without a heartbeat"
    assert time.monotonic() - start < 10


@pytest.mark.full
def test_an_interruption_ends_the_trainer_too(tmp_path):
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(SMALL))
    words = ["smoke", "--config", str(config), "--output", str(tmp_path / "out"), "--steps", "100000", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nsa_doctor", *words], stderr=subprocess.PIPE, env=environment(), text=True
    )
    path = tmp_path / "out" / "run" / "heartbeat_rank0.jsonl"
    deadline = time.monotonic() + 60
    while not (path.is_file() and path.read_text().count("\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    trainer = beats(path.parent)[0]["pid"]
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "nsa-doctor: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(trainer, 0)
