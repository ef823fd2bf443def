"""Runs that really trained: silent on healthy ones of many kinds, and what is reported of those that went wrong."""

import os
import shutil
import signal
import threading
import time
from itertools import count

import pytest

from nsa.data.synthetic import synthetic_row
from nsa.train.failures import OutOfDataError
from nsa.train.schedule import learning_rate
from nsa_doctor.artifacts.judging import judged
from nsa_doctor.artifacts.training_run.sessions import endings, kind_of, sessions_of
from nsa_doctor.core import registry
from nsa_doctor.testing.training_runs import document_of, live, seen, trained

SHORT = {"steps": 24, "eval_every": 12, "save_every": 8, "eval_batches": 1, "sample_tokens": 0}
full = pytest.mark.full


def findings_of(subject):
    """The findings of every check of runs, as `code message`."""
    results = judged(registry.of_kind("run"), subject)
    assert not [result for result in results if result.verdict == "CRASH"]
    return [f"{finding.code} {finding.message}" for result in results for finding in result.findings]


def sigterm_at(step):
    """A schedule that asks the run to stop, as a cluster does."""

    def rate(number, train):
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return learning_rate(number, train)

    return {"nsa.train.loop.learning_rate": rate}


def ends_at(step, error=OutOfDataError, sentence="the disk was taken away", *, is_silent=False):
    """A schedule that ends the run; silently, as SIGKILL does."""

    def rate(number, train):
        if number == step:
            raise error(sentence)
        return learning_rate(number, train)

    seams = {"nsa.train.loop.learning_rate": rate}
    return seams | ({"nsa.train.run._try_to_tell": lambda *_: None} if is_silent else {})


HEALTHY = {
    "short": {},
    "seed": {"seed": 7},
    "constant rate": {"lr_schedule": "constant", "warmup_steps": 0},
    "stopped and resumed": {"seams_of_sessions": (sigterm_at(11), {})},
    "killed and resumed": {"seams_of_sessions": (ends_at(19, is_silent=True), {})},
    **{f"seed {seed}": pytest.param({"seed": seed, "steps": 60}, marks=full) for seed in range(10)},
    "long": pytest.param({"steps": 300, "save_every": 50, "eval_every": 100}, marks=full),
    "every step saved": pytest.param({"save_every": 1, "keep_last": 1}, marks=full),
    "no saves": pytest.param({"save_every": 0}, marks=full),
    "floor": pytest.param({"lr_floor": 1e-3, "steps": 80}, marks=full),
    "low rate": pytest.param({"lr": 1e-3, "steps": 80}, marks=full),
    "wide": pytest.param({"model": {"dim": 64, "n_layers": 2}, "steps": 60}, marks=full),
    "accumulated": pytest.param({"accumulate_grad_batches": 2, "batch_size": 4}, marks=full),
    "one branch": pytest.param({"model": {"branch": "win"}, "steps": 60}, marks=full),
    "bf16": pytest.param({"runtime": {"precision": "bf16"}, "steps": 60}, marks=full),
    "stopped": pytest.param({"seams_of_sessions": (sigterm_at(11),)}, marks=full),
    "killed thrice": pytest.param(
        {"seams_of_sessions": (*(ends_at(step, is_silent=True) for step in (3, 13, 22)), {})}, marks=full
    ),
    "killed in a save": pytest.param({"seams_of_sessions": (ends_at(9, is_silent=True), {})}, marks=full),
}


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=list(HEALTHY))
def test_a_healthy_run_raises_no_alarm(changes):
    assert findings_of(trained(**{**SHORT, **changes})) == []


def test_a_run_is_silent_only_once_it_has_been_for_too_long(tmp_path):
    live(document_of(tmp_path / "run", **SHORT), ends_at(11, is_silent=True))
    assert findings_of(seen(tmp_path / "run")) == []
    assert [each[:6] for each in findings_of(seen(tmp_path / "run", 200.0))] == ["TRN101"]


@pytest.mark.parametrize(
    ("sessions", "says"),
    [
        ((ends_at(11),), "TRN103 the run ended after step 10: the disk was taken away"),
        ((ends_at(11), {}), ""),
        (
            (ends_at(11), {"nsa.train.run.data_state": lambda *_: None}),
            "CKP104 step 9 lost",
        ),
    ],
    ids=["ended", "ended and resumed", "data begin anew"],
)
def test_what_ended_a_run_is_reported_until_it_has_gone_on(sessions, says):
    found = findings_of(trained(seams_of_sessions=sessions, **SHORT))
    assert [each[: len(says)] for each in found] == ([says] if says else [])


def test_a_loader_that_stalls_and_ends_the_run_is_reported_once_with_its_line(tmp_path):
    rows, until = count(), threading.Event()

    def hangs_here(*given, **named):
        if next(rows) == 60:
            until.wait(20)
        return synthetic_row(*given, **named)

    document = document_of(tmp_path / "run", **SHORT)
    document["data"]["limit_seconds"] = 1.5
    live(document, {"nsa.data.sources.synthetic_row": hangs_here, "nsa.data.feeder._FAREWELL_SECONDS": 0.1})
    until.set()
    (finding,) = findings_of(seen(tmp_path / "run"))
    assert finding.startswith("TRN102 waiting for a batch at make of synthetic: ")
    assert f"in hangs_here ({__file__}:" in finding


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of 24 steps, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    live(document_of(folder, **SHORT), {})
    return folder


def spoiled(name):
    """What happens to the folder of a run of 24 steps with a checkpoint every 8."""

    def spoil(folder):
        path = folder / "checkpoints" / "step_00000016"
        match name:
            case "gone":
                shutil.rmtree(path)
            case "empty":
                (path / "model.safetensors").write_bytes(b"")
            case "pruned":
                shutil.rmtree(folder / "checkpoints" / "step_00000008")
            case "moved":
                path.rename(path.with_name(f"unreadable_{path.name}"))

    return spoil


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", "TRN104 the checkpoint of step 16 was saved and is gone"),
        ("empty", "TRN104 the checkpoint of step 16 holds an empty model.safetensors"),
        ("pruned", ""),
        ("moved", ""),
    ],
)
def test_a_checkpoint_that_is_lost_is_reported_and_one_left_out_for_newer_ones_is_not(name, says, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    spoiled(name)(tmp_path / "run")
    found = findings_of(seen(tmp_path / "run"))
    assert [each.partition(";")[0] for each in found] == ([says] if says else [])


def test_saves_that_are_left_out_are_reported():
    found = findings_of(trained(seams={"nsa.train.loop.Loop._save": lambda *_: None}, **SHORT))
    assert found == ["TRN104 the checkpoint of step 8 and 16 was not saved; the run came to step 24"]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stopped by SIGTERM after step 4, and saved: go on with --resume auto", "stopped"),
        ("KeyboardInterrupt", "stopped"),
        ("stopped: the loss is nan at step 30; the weights are those before the step", "not finite"),
        ("stopped: the loss of step 3 is finite and its gradient is not (norm inf): head.weight", "not finite"),
        ("stopped after 10 skipped steps in a row: the loss is inf at step 9", "not finite"),
        ("no batch came within 120 s: the loader has been at stage read of shard 3 for 120.0 s", "stalled"),
        ("rank 1 ended the run: out of memory", "another rank"),
        ("rank 1 ended without a word, its last heartbeat 3.0 s ago at step 4", "another rank"),
        ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:30", "another rank"),
        ("after step 4 rank 1 holds another norm.weight and 2 more than rank 0", "ranks differ"),
        ("out of memory with micro-batches of 8 rows", "error"),
        ("corpus.txt: has vanished (stage read)", "error"),
    ],
)
def test_the_words_of_an_end_say_whose_matter_it_is(reason, kind):
    assert kind_of(reason) == kind


def test_a_run_has_as_many_lives_as_starts():
    record = trained(seams_of_sessions=(ends_at(11), {}), **SHORT).record
    sessions = sessions_of(record)
    assert [(session.resumed_from, session.last_step) for session in sessions] == [(None, 10), (8, 24)]
    assert [end.kind for end in endings(record)] == ["finished"]
