"""`--recompute`: what its process may do instead of an answer is a reason, and what cannot be asked one sentence."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.replay import RecomputeRequest, with_steps_again
from nsa_doctor.cli.main import serve
from nsa_doctor.testing.training_runs import document_of, live


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a healthy run."""
    folder = tmp_path_factory.mktemp("recompute") / "run"
    live(document_of(folder, steps=4, save_every=2), {})
    return folder


def reason(record: RunRecord, **how: Any) -> str:
    replay = with_steps_again(record, RecomputeRequest(**how), lambda text, done, total: None).replay
    assert replay is not None
    return replay.reason


def is_killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps(*_: object) -> None:
    time.sleep(1000)


@pytest.mark.parametrize(
    ("answered", "sentence"),
    [
        (
            is_killed,
            "the process died by signal 9 (SIGKILL, with which the system also ends what takes too much memory)",
        ),
        (lambda *_: os._exit(3), "the process ended with exit code 3"),
        (sleeps, "they were not made within 0.5 s"),
    ],
    ids=["killed", "exits", "sleeps"],
)
def test_a_process_that_gives_no_answer_is_a_reason(
    answered: Callable[..., None], sentence: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa_doctor.worker.replay_main.answered", answered)
    assert sentence in reason(read_run(run), seconds=0.5 if answered is sleeps else 60.0)


def test_another_trainers_run_is_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": step, "loss": 5.0 - step}) + "\n" for step in range(4)))
    assert reason(read_run(log)) == "it is no run of nsa.train"


def test_the_command_tells_how_near_the_steps_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["watch", str(run), "--recompute", "--select", "TRN601", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    (result,) = json.loads(out)["results"]
    (note,) = result["notes"]
    assert note.startswith("computed again, steps 3 to 4 as logged: loss to ")
    assert [line.partition(" ")[2] for line in err.splitlines()][:3] == ["step 3", "step 3", "step 4"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["watch", "RUN", "--recompute", "--follow"],
            "--recompute looks at a run once and has no effect with --follow",
        ),
        (["watch", "RUN", "--device", "cuda"], "--device says where --recompute computes and has no effect without it"),
        (["watch", "RUN", "--recompute", "--device", "tpu"], "--device cannot be 'tpu'"),
        (["go-no-go", "--recompute"], "--recompute is for a --run and has no effect without one"),
    ],
)
def test_what_has_no_effect_is_refused(words: list[str], sentence: str, run: Path, capsys: Any) -> None:
    assert serve([str(run) if word == "RUN" else word for word in words]) == 2
    assert sentence in capsys.readouterr().err
