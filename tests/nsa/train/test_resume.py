"""A run that was ended goes on as if it had not been, and never writes over another."""

import json
import os
import shutil
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load_file

from nsa.train import TrainError
from nsa.train.checkpoint import checkpoints
from nsa.train.start import held

END = {"breaks_at": 4}  # the loader fails after 4 of 6 steps


@pytest.fixture
def ended(run):
    """`ended(save_every=1, …)`: the folder of a run that broke off after step 4."""

    def go(**changes):
        with pytest.raises(TrainError, match="shard 3"):
            run(faults=END, **{"save_every": 1, **changes})

    return go


def refusal(call, *arguments, **keywords):
    with pytest.raises(TrainError) as caught:
        call(*arguments, **keywords)
    assert caught.value.code == 2
    return str(caught.value)


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate_grad_batches": 2, "warmup_steps": 3, "weight_decay": 0.1, "grad_clip": 0.5},
        {"runtime": {"precision": "bf16"}, "eval_every": 2},
        {"nsa": {"phi": "mlp", "gate": "sigmoid"}, "lr_schedule": "constant"},
    ],
    ids=["plain", "accumulated", "bf16", "mlp"],
)
def test_a_resumed_run_equals_one_never_interrupted_bit_for_bit(changes, run, ended, losses, tmp_path):
    whole = run(out_dir=str(tmp_path / "whole"), **changes)
    ended(**changes)
    parts = run(save_every=1, resume="auto", **changes)
    assert losses(parts) == losses(whole)
    assert same(weights(parts), weights(whole))
    assert (parts / "evaluations.csv").read_text() == (whole / "evaluations.csv").read_text()
    assert (parts / "gates.csv").read_text() == (whole / "gates.csv").read_text()


def test_the_heartbeat_says_where_it_went_on_and_the_doctor_counts_it(run, ended, beats):
    from nsa_doctor.artifacts.training_run.numbers import numbers_of
    from nsa_doctor.artifacts.training_run.reading import read_run

    ended(save_every=3)
    folder = run(save_every=3, resume="auto")
    assert "resumed from step_00000003" in [beat["msg"] for beat in beats(folder)]
    assert numbers_of(read_run(folder))["resumes"] == 1
    assert json.loads((folder / "metrics.json").read_text())["lives"] == 2


def test_steps_made_after_the_checkpoint_are_made_again_and_logged_once(run, ended, losses):
    ended(save_every=3)
    assert [step for step, _ in losses(run(save_every=3, resume="auto"))] == list("123456")


def test_before_the_first_checkpoint_it_begins_anew(run, ended, capsys, losses, tmp_path):
    ended(save_every=0)
    folder = run(resume="auto")
    assert "there is no checkpoint yet: begins at step 1" in capsys.readouterr().out
    assert losses(folder) == losses(run(out_dir=str(tmp_path / "whole")))


def test_auto_in_an_empty_place_begins(run):
    assert (run(resume="auto") / "model.pt").exists()


@pytest.mark.parametrize("harm", ["cut", "bit", "missing", "unfinished"])
def test_a_corrupt_newest_checkpoint_is_named_and_the_one_before_used(harm, run, ended, losses, tmp_path, capsys):
    ended(save_every=1)
    newest = tmp_path / "run" / "checkpoints" / "step_00000004"
    victim = newest / "optimizer.safetensors"
    content = victim.read_bytes()
    if harm == "cut":
        victim.write_bytes(content[:-9])
    elif harm == "bit":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "missing":
        victim.unlink()
    else:
        newest.rename(newest.with_name(".step_00000004.tmp"))
    folder = run(save_every=1, resume="auto")
    output = capsys.readouterr().out
    if harm != "unfinished":
        assert "checkpoints/step_00000004: optimizer.safetensors" in output
        assert "set aside, and step_00000003 used" in output
        assert (folder / "checkpoints" / "unreadable_step_00000004").is_dir()
    assert losses(folder) == losses(run(out_dir=str(tmp_path / "whole")))


def test_when_none_can_be_read_nothing_is_begun_anew(run, ended, tmp_path):
    ended()
    for path in checkpoints(tmp_path / "run" / "checkpoints"):
        (path / "state.json").write_text("{}")
    sentence = refusal(run, save_every=1, resume="auto")
    assert "no checkpoint in" in sentence
    assert "can be read" in sentence
    assert len(checkpoints(tmp_path / "run" / "checkpoints")) == 3


def test_another_configuration_is_refused_naming_the_keys(run, ended, tmp_path):
    ended()
    sentence = refusal(run, resume="auto", save_every=1, lr=3e-3, model={"mlp_dim": 9})
    assert (
        "is of another configuration: model.mlp_dim (None, asked for 9), train.lr (0.01, asked for 0.003)" in sentence
    )


def test_where_it_writes_and_how_it_is_watched_may_change(run, ended):
    ended()
    folder = run(resume="auto", log_every=1, keep_last=1, save_every=5, watchdog_seconds=9.0, eval_every=3)
    assert (folder / "model.pt").exists()


def test_a_finished_run_writes_its_results_again_and_changes_nothing(run):
    folder = run()
    before = weights(folder), (folder / "training.csv").read_text()
    (folder / "model.pt").unlink()
    run(resume="auto")
    assert same(weights(folder), before[0])
    assert ((folder / "training.csv").read_text(), (folder / "model.pt").exists()) == (before[1], True)


# Whose folder it is.


def test_a_folder_with_a_run_is_never_overwritten(run):
    folder = run()
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    sentence = refusal(run)
    assert f"{folder} holds a run" in sentence
    assert "go on with --resume auto, or give another train.out_dir" in sentence
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))} == before


def test_a_run_of_who_knows_what_is_not_resumed(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "training.csv").write_text("step,loss\n1,2\n")
    assert "it does not say (env.json) of which configuration it is" in refusal(run, resume="auto")
    assert (tmp_path / "run" / "training.csv").read_text() == "step,loss\n1,2\n"


def test_two_processes_do_not_train_into_one_folder(run, tmp_path):
    with held(tmp_path / "run"):
        assert "is in use by another process" in refusal(run)


def test_a_file_in_the_place_of_the_folder_is_refused(run, tmp_path):
    (tmp_path / "run").write_text("mine")
    assert "is not a folder" in refusal(run)


# From elsewhere.


def test_a_checkpoint_by_name_begins_a_branch_in_another_folder(run, ended, losses, tmp_path):
    ended()
    source = tmp_path / "run" / "checkpoints" / "step_00000003"
    branch = run(resume=str(source), out_dir=str(tmp_path / "branch"))
    whole = run(out_dir=str(tmp_path / "whole"))
    assert losses(branch) == losses(whole)[3:]
    assert same(weights(branch), weights(whole))
    assert (source / "manifest.json").exists()


def test_a_run_by_its_folder_goes_on_from_its_newest(run, ended, losses, tmp_path):
    ended()
    branch = run(resume=str(tmp_path / "run"), out_dir=str(tmp_path / "branch"))
    assert [step for step, _ in losses(branch)] == ["5", "6"]


def test_an_older_checkpoint_does_not_write_over_newer_ones(run, ended, tmp_path):
    ended()
    sentence = refusal(run, save_every=1, resume=str(tmp_path / "run" / "checkpoints" / "step_00000003"))
    assert "step_00000004 is newer and would be overwritten" in sentence


def test_a_damaged_checkpoint_by_name_is_refused(run, ended, tmp_path):
    ended()
    source = tmp_path / "run" / "checkpoints" / "step_00000004"
    (source / "rng.safetensors").unlink()
    assert "rng.safetensors is missing" in refusal(run, resume=str(source), out_dir=str(tmp_path / "branch"))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_file_of_weights_gives_weights_alone_and_it_is_said(name, run, tmp_path, capsys, losses, beats):
    first = run()
    second = run(resume=str(first / name), out_dir=str(tmp_path / "second"))
    assert "and nothing else: optimizer, schedule and data start from the beginning" in capsys.readouterr().out
    assert beats(second)[0]["msg"] == f"started from the weights in {name}"
    assert len(losses(second)) == 6
    assert float(losses(second)[0][1]) < float(losses(first)[0][1])


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"\x80\x02cos\nsystem\n(S'true'\ntR."], ids=["empty", "text", "code"]
)
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_file_that_is_no_weights_is_refused(content, name, run, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert "cannot be read as weights" in refusal(run, resume=str(tmp_path / name))


class Calls:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


UNSAFE = {
    "code": (Calls(os.system, "touch canary"), "'posix.system'"),
    "all memory": (Calls(bytearray, 2**40), "builtin"),
    "a whole module": (torch.nn.Linear(2, 2), "'torch.nn.modules.linear.Linear'"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", UNSAFE)
def test_weights_that_a_loader_would_execute_are_refused_in_our_words(name, protocol, run, tmp_path, monkeypatch):
    thing, says = UNSAFE[name]
    monkeypatch.chdir(tmp_path)
    torch.save({"w": thing}, tmp_path / "evil.pt", pickle_protocol=protocol)
    sentence = refusal(run, resume=str(tmp_path / "evil.pt"))
    assert says in sentence
    assert "it is unsafe" in sentence
    assert "weights_only" not in sentence
    assert not (tmp_path / "canary").exists()


def test_a_plain_state_dict_of_parameters_is_taken(run, tmp_path):
    first = run()
    plain = {name: torch.nn.Parameter(value) for name, value in torch.load(first / "model.pt").items()}
    torch.save(OrderedDict(plain), tmp_path / "w.pt")
    assert (run(resume=str(tmp_path / "w.pt"), out_dir=str(tmp_path / "b")) / "model.pt").exists()


def test_weights_of_another_model_are_refused_by_name(run, tmp_path):
    first = run()
    sentence = refusal(run, resume=str(first / "model.pt"), out_dir=str(tmp_path / "b"), model={"dim": 24})
    assert "the file of weights has " in sentence
    torch.save({"model": {}, "step": 3}, tmp_path / "nested.pt")
    assert "must be a plain state dict" in refusal(run, resume=str(tmp_path / "nested.pt"), out_dir=str(tmp_path / "c"))


def test_a_place_that_is_not_there_is_refused(run, tmp_path):
    assert "no such file or folder" in refusal(run, resume=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in refusal(run, resume=str(tmp_path / "empty"))


def test_a_copied_run_is_resumed_where_it_was_copied_to(run, ended, losses, tmp_path):
    ended()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    folder = run(save_every=1, resume="auto", out_dir=str(tmp_path / "copy"))
    assert [step for step, _ in losses(folder)] == list("123456")


@pytest.mark.parametrize("named", [False, True], ids=["auto", "named"])
def test_a_run_goes_on_from_a_checkpoint_whose_replacement_was_killed(named, run, ended, losses, tmp_path):
    ended(save_every=1)
    newest = tmp_path / "run" / "checkpoints" / "step_00000004"
    newest.rename(newest.with_name(".step_00000004.old"))
    folder = run(save_every=1, resume=str(newest) if named else "auto")
    assert losses(folder) == losses(run(out_dir=str(tmp_path / "whole")))
