"""A checkpoint is whole or is not chosen: every file missing, cut, changed or left over from a killed save."""

import json
import os
from itertools import count

import pytest
import torch

from nsa.train.checkpoint import (
    Snapshot,
    UnreadableError,
    checkpoints,
    read_checkpoint,
    remove_unfinished,
    set_aside,
    standing,
    write_checkpoint,
)
from nsa.train.failures import CannotWriteError

FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")


def snapshot(step=7):
    return Snapshot(
        step=step,
        model={"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
        optimizer={"w.exp_avg": torch.full((2, 3), 0.1), "w.step": torch.tensor(7.0)},
        rng={"rank0.cpu": torch.arange(5, dtype=torch.uint8)},
        state={"history": {"tokens": 9}, "loss": 0.1 + 0.2},
    )


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_what_is_written_is_read_back_bit_for_bit(tmp_path):
    path = write_checkpoint(tmp_path / "checkpoints", snapshot(), keep_last=3)
    found = read_checkpoint(path)
    assert path.name == "step_00000007"
    assert (found.step, found.state) == (7, snapshot().state)
    assert all(same(getattr(found, part), getattr(snapshot(), part)) for part in ("model", "optimizer", "rng"))


def test_nothing_in_it_is_a_pickle(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), keep_last=3)
    assert sorted(each.name for each in path.iterdir()) == sorted((*FILES, "manifest.json"))
    assert all(b"\x80\x02" not in (path / name).read_bytes()[:2] for name in FILES)
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == set(FILES)


def test_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 3, 10, 11):
        write_checkpoint(tmp_path, snapshot(step), keep_last=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_00000011", "step_00000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000010", "step_00000011"]


def test_one_of_the_same_step_is_replaced(tmp_path):
    write_checkpoint(tmp_path, snapshot(), keep_last=3)
    path = write_checkpoint(tmp_path, Snapshot(step=7, model={"w": torch.zeros(1)}), keep_last=3)
    assert same(read_checkpoint(path).model, {"w": torch.zeros(1)})
    assert [each.name for each in tmp_path.iterdir()] == ["step_00000007"]


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_is_named(name, tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), keep_last=3)
    (path / name).unlink()
    with pytest.raises(UnreadableError, match=f"^{name} is missing$"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_named(name, tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), keep_last=3)
    os.truncate(path / name, (path / name).stat().st_size - 1)
    with pytest.raises(UnreadableError, match=f"^{name} has .* bytes, and had"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_one_changed_bit_is_noticed(name, place, tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), keep_last=3)
    content = bytearray((path / name).read_bytes())
    content[place] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=f"^{name} is not what was written"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", "[" * 10_000, '{"step": 1, "files": 3}', '{"step": "x", "files": {}, "format": 1}'),
        *('{"step": 1, "files": {}, "format": 1}', '{"step": 1, "files": {}, "format": 2}'),
        '{"step": 1, "files": {"model.safetensors": {}}, "format": 1}',
    ],
    ids=lambda content: content[:60],
)
def test_a_manifest_that_is_none_is_reported(content, tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), keep_last=3)
    (path / "manifest.json").write_text(content)
    with pytest.raises(UnreadableError, match=r"^manifest\.json"):
        read_checkpoint(path)


def test_what_a_killed_save_left_is_no_checkpoint_and_is_removed(tmp_path):
    write_checkpoint(tmp_path, snapshot(3), keep_last=3)
    (tmp_path / ".step_00000004.tmp").mkdir()
    (tmp_path / ".step_00000004.tmp" / "model.safetensors").write_bytes(b"half")
    assert [path.name for path in checkpoints(tmp_path)] == ["step_00000003"]
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]


def test_one_set_aside_is_not_counted_again(tmp_path):
    for step in (3, 4):
        write_checkpoint(tmp_path, snapshot(step), keep_last=3)
    assert set_aside(tmp_path / "step_00000004").name == "unreadable_step_00000004"
    assert [path.name for path in checkpoints(tmp_path)] == ["step_00000003"]


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_full_disk_is_one_sentence_and_costs_no_earlier_checkpoint(call, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, snapshot(3), keep_last=1)

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"os.{call}", refuse)
    with pytest.raises(CannotWriteError, match=r"step_00000004.*No space left on device; free some space"):
        write_checkpoint(tmp_path, snapshot(4), keep_last=1)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]
    assert read_checkpoint(tmp_path / "step_00000003").step == 3


CALLS = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
FIRST, SECOND = ({"w": torch.full((2,), value)} for value in (1.0, 2.0))


def saved_until(folder, call_number):
    """Save again in a process that is killed before its n-th call of the system; whether it was."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    calls = count()

    def dying(call):
        def die(*given, **named):
            if next(calls) == call_number:
                os._exit(9)
            return call(*given, **named)

        return die

    try:
        for name in CALLS:
            setattr(os, name, dying(getattr(os, name)))
        write_checkpoint(folder, Snapshot(step=7, model=SECOND), keep_last=1)
    finally:
        os._exit(0)


def test_a_save_killed_at_any_moment_leaves_the_checkpoint_it_replaces_or_its_own(tmp_path):
    for number in count():
        folder = tmp_path / str(number)
        for step in (3, 5):
            write_checkpoint(folder, snapshot(step), keep_last=9)
        write_checkpoint(folder, Snapshot(step=7, model=FIRST), keep_last=9)
        was_killed = saved_until(folder, number)
        found = checkpoints(folder)
        assert [read_checkpoint(path).step for path in found] == [7, 5, 3][: len(found)], f"killed at call {number}"
        model = read_checkpoint(found[0]).model
        assert same(model, FIRST) or same(model, SECOND)
        assert standing(folder / "step_00000007") == found[0]
        remove_unfinished(folder)
        assert same(read_checkpoint(folder / "step_00000007").model, model)
        write_checkpoint(folder, Snapshot(step=7, model=SECOND), keep_last=1)
        assert [path.name for path in folder.iterdir()] == ["step_00000007"]
        assert same(read_checkpoint(folder / "step_00000007").model, SECOND)
        if not was_killed:
            break
    assert number > 20


@pytest.mark.parametrize("refused", [1, 2, "from then on"])
def test_a_rename_that_is_refused_costs_no_checkpoint(refused, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, Snapshot(step=7, model=FIRST), keep_last=1)
    rename, calls = os.rename, count(1)

    def refuse(old, new):
        number = next(calls)
        if number == refused or (refused == "from then on" and number > 1):
            raise OSError(28, "No space left on device")
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        with pytest.raises(CannotWriteError, match=r"step_00000007.*No space left on device"):
            write_checkpoint(tmp_path, Snapshot(step=7, model=SECOND), keep_last=1)
    (path,) = checkpoints(tmp_path)
    assert path.name == (".step_00000007.old" if refused == "from then on" else "step_00000007")
    assert same(read_checkpoint(path).model, FIRST)


def test_one_set_aside_while_it_was_replaced_has_its_own_name(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(4), keep_last=3)
    path.rename(tmp_path / ".step_00000004.old")
    (found,) = checkpoints(tmp_path)
    assert set_aside(found).name == "unreadable_step_00000004"
    assert checkpoints(tmp_path) == []


def test_what_was_half_removed_is_not_put_back(tmp_path):
    (tmp_path / ".step_00000004.old").mkdir()
    (tmp_path / ".step_00000004.old" / "model.safetensors").write_bytes(b"half")
    assert checkpoints(tmp_path) == []
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []
