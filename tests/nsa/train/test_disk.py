"""What the disk refuses ends the run with one sentence, and with what was saved before."""

import os

import pytest
import torch

from nsa.train import TrainError
from nsa.train.files import is_held_by_another, lock, write_tensors, write_whole
from nsa.train.table import Table, read_table

FULL = "/dev/full"
needs_a_full_disk = pytest.mark.skipif(not os.path.exists(FULL), reason="needs /dev/full")


def refused(run, **changes):
    with pytest.raises(TrainError) as caught:
        run(**changes)
    assert caught.value.code == 5
    return str(caught.value)


@needs_a_full_disk
@pytest.mark.parametrize("name", ["heartbeat_rank0.jsonl", "training.csv"])
def test_a_disk_full_under_a_growing_file(name, run, monkeypatch):
    from nsa.train.files import Lines

    make = Lines.__init__

    def fill(self, path):
        make(self, path)
        if path.name == name:
            self._file.close()
            self._file = open(FULL, "ab", buffering=0)  # noqa: SIM115

    monkeypatch.setattr(Lines, "__init__", fill)
    assert f"{name}: cannot be written: No space left on device; free some space" in refused(run)


@pytest.mark.parametrize("victim", ["state.json", "model.safetensors", "manifest.json"])
def test_a_disk_full_during_a_save_leaves_the_checkpoint_before(victim, run, tmp_path, monkeypatch, losses):
    from nsa.train import checkpoint, files

    settle, at_step_4 = files.settle, ".step_00000004.tmp"

    def refuse(path):
        if at_step_4 in str(path) and victim in path.name:
            raise OSError(28, "No space left on device")
        settle(path)

    monkeypatch.setattr(checkpoint, "settle", refuse)
    monkeypatch.setattr(files, "settle", refuse)
    sentence = refused(run, save_every=2)
    assert "No space left on device; free some space" in sentence
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000002"]
    monkeypatch.undo()
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)
    assert losses(run(save_every=2, resume="auto")) == losses(run(out_dir=str(tmp_path / "whole")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else(run, tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    assert "cannot be written: Permission denied; give a folder you own" in refused(run)


def test_a_place_where_no_folder_can_be(run, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(run, out_dir=str(tmp_path / "file" / "run"))


# Tables.


def test_a_table_forgets_what_came_after_the_step_it_goes_on_from(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25\n3,0.1\n4,0.")
    table = Table(path, ("step", "loss"), 2)
    table.add(3, 1 / 3)
    table.close()
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n3,0.3333333333333333\n"


@pytest.mark.parametrize("content", ["", "\0\0", "step\n", "step,loss\n,\n", "loss\n1\n", '"', "step,loss\nx,1\n2"])
def test_a_damaged_table_is_begun_with_what_can_be_read(content, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(content)
    Table(path, ("step", "loss"), 9).close()
    assert path.read_text() in ("step,loss\n", "step,loss\n2,\n")


def test_no_table_has_no_rows(tmp_path):
    assert read_table(tmp_path / "none.csv") == []


def test_tensors_that_cannot_be_written_are_reported_as_other_files_are(tmp_path):
    with pytest.raises(TrainError, match=r"w\.safetensors: cannot be written: No such file or directory"):
        write_tensors(tmp_path / "nowhere" / "w.safetensors", {"w": torch.zeros(2)})


def test_tensors_are_for_the_same_readers_as_other_files(tmp_path):
    write_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(2)})
    write_whole(tmp_path / "w.txt", "w")
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "w.txt").stat().st_mode


def test_two_that_look_at_once_see_whether_a_third_holds_a_file(tmp_path):
    path = tmp_path / "lines"
    path.touch()
    with path.open("rb+") as other:
        assert lock(other, is_shared=True)
        assert not is_held_by_another(path)
    with path.open("rb+") as holder:
        assert lock(holder)
        assert is_held_by_another(path)
