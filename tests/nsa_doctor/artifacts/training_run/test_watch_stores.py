"""Runs as MLflow, TensorBoard and wandb store them are read as logs are, and what is broken is one sentence."""

import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.artifacts.training_run.reading import RunError, read_run
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.stores import rows_of
from nsa_doctor.artifacts.training_run.wandb_file import history

LOSSES = [3.0 / step**0.5 for step in range(1, 41)]
# One record of history that wandb 0.31 wrote, as it stands in its file.
RECORD = bytes.fromhex(
    "080a12aa010a0b12055f73746570820101310a20120a747261696e2f6c6f7373820111352e3837383330313539343938363238310a26120f"
    "747261696e2f677261645f6e6f726d820112312e373537393534343032393430333032350a0c12026c72820105302e3030310a25120a5f74"
    "696d657374616d70820116312e37393534383031313133373736383633652b30390a1812085f72756e74696d6582010b302e383731363133"
    "31303112020801"
)


def mlflow(folder: Path, losses: list[float]) -> Path:
    """As mlflow.log_metrics writes them."""
    run = folder / "mlruns" / "911583531848252734" / "839dd10c4b9d45228eb5b83fdb34c0d9"
    for name in ("train/loss", "train/grad_norm", "system/cpu"):
        path = run / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = losses if name == "train/loss" else [1.0] * len(losses)
        lines = [f"{1795480000000 + 500 * step} {value} {step}\n" for step, value in enumerate(values, start=1)]
        path.write_text("".join(lines))
    (run / "meta.yaml").write_text("run_id: 839dd10c4b9d45228eb5b83fdb34c0d9\n")
    return folder / "mlruns"


def tensorboard(folder: Path, losses: list[float]) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "runs" / "x")) as writer:
        for step, value in enumerate(losses, start=1):
            writer.add_scalar("train/loss", value, step)
            writer.add_scalar("train/grad_norm", 1.0, step)
    return folder / "runs"


def wandb_record(**values: object) -> bytes:
    items = b""
    for name, value in values.items():
        key, text = name.encode(), json.dumps(value).encode()
        item = b"\x12" + bytes([len(key)]) + key + b"\x82\x01" + bytes([len(text)]) + text
        items += b"\x0a" + bytes([len(item)]) + item
    length = len(items)
    return b"\x12" + bytes([length & 0x7F | 0x80, length >> 7]) + items


def wandb_file(records: list[bytes]) -> bytes:
    """Parts in blocks of 32 KiB, as LevelDB's log has them."""
    made = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        rest, is_first = record, True
        while rest or is_first:
            left = (1 << 15) - len(made) % (1 << 15)
            if left < 7:
                made += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            made += struct.pack("<IHB", 0, len(part), kind) + part
            is_first = False
    return bytes(made)


def wandb(folder: Path, losses: list[float]) -> Path:
    run = folder / "wandb" / "offline-run-1-abc"
    run.mkdir(parents=True)
    rows = [
        {"_step": step, "_timestamp": 1795480000.0 + step, "train/loss": value, "train/global_step": step + 1}
        for step, value in enumerate(losses)
    ]
    (run / "run-abc.wandb").write_bytes(wandb_file([wandb_record(**row) for row in rows]))
    return folder / "wandb"


STORES: dict[str, Callable[[Path, list[float]], Path]] = {"mlflow": mlflow, "tensorboard": tensorboard, "wandb": wandb}


def losses_of(record: RunRecord) -> list[tuple[int | None, float | None]]:
    return [(beat.step, beat.loss) for beat in record.beats]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.filterwarnings("ignore")  # tensorboard's
def test_a_stored_run_is_read_with_steps_losses_and_times(kind: str, tmp_path: Path) -> None:
    record = read_run(STORES[kind](tmp_path, LOSSES))
    assert [step for step, _ in losses_of(record)] == list(range(1, 41))
    assert [loss for _, loss in losses_of(record)] == pytest.approx(LOSSES)
    assert record.clock == "absolute"
    assert losses_of(read_run(tmp_path)) == losses_of(record)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_is_no_number_is_kept(kind: str, tmp_path: Path) -> None:
    losses = losses_of(read_run(STORES[kind](tmp_path, [*LOSSES[:9], math.nan])))
    assert math.isnan(losses[9][1] or 0.0)


def test_a_record_that_wandb_wrote_is_read() -> None:
    (row,) = history(wandb_file([RECORD]))
    assert row["train/loss"] == 5.878301594986281
    assert (row["_step"], row["lr"], row["_timestamp"]) == (1, 0.001, 1795480111.3776863)


def test_records_go_across_blocks_and_what_is_cut_short_is_left_out() -> None:
    whole = wandb_file([RECORD] * 400)
    assert len(whole) > 2 << 15
    assert len(list(history(whole))) == 400
    assert len(list(history(whole[:40_000]))) == 40_000 // (len(RECORD) + 7)


def test_a_step_that_a_resumed_run_makes_again_is_a_row_of_its_own(tmp_path: Path) -> None:
    mlflow(tmp_path, LOSSES[:3])
    (run,) = tmp_path.glob("mlruns/*/*")
    with (run / "metrics/train/loss").open("a") as file:
        file.write("1795489999000 0.5 3\n")
    rows = rows_of(run)
    assert [(row["step"], row.get("train/loss")) for row in rows[-2:]] == [(3, LOSSES[2]), (3, 0.5)]
    assert "system/cpu" not in rows[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "does not begin as wandb's files do"),
        (b"PK\x03\x04 and more", "does not begin as wandb's files do"),
        (wandb_file([b"\x12\x05\x0a\xff\xff\xff\xff"]), "a number does not end"),
        (wandb_file([b"\x12\x7f"]), "a record ends before its fields do"),
        (wandb_file([b"\x13"]), "which protocol buffers no longer have"),
        (wandb_file([wandb_record(loss="x")[:-3] + b"[[["]), "JSONDecodeError"),
    ],
)
def test_a_file_of_wandb_that_is_broken_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(content)
    with pytest.raises(RunError, match=sentence) as caught:
        read_run(path)
    assert "\n" not in str(caught.value)


def test_without_tensorboard_events_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.out.tfevents.1.vm").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(RunError, match="pip install tensorboard"):
        read_run(tmp_path / "events.out.tfevents.1.vm")
