"""torchtitan's console log and its folder of outputs are read as other trainers' logs are."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nsa_doctor.artifacts.training_run.reading import RunReader, read_run
from nsa_doctor.artifacts.training_run.sessions import sessions_of
from nsa_doctor.core.finding import Decision
from tests.nsa_doctor.artifacts.training_run.runs import codes, falling, watched

RECORDED = Path(__file__).parent / "recorded"
COLOURS = ("\x1b[31m", "\x1b[32m", "\x1b[38;2;180;60;0m", "\x1b[34m", "\x1b[39m")
BEGIN = datetime.now() - timedelta(hours=1)


def logged(text: str, *, second: float = 0, rank: str = "[rank0]:") -> str:
    at = BEGIN + timedelta(seconds=second)
    return f"{rank}[titan] {at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d} - root - INFO - {text}\n"


def step_line(step: int, loss: float, *, rank: str = "[rank0]:", form: str = "colour") -> str:
    red, green, orange, blue, reset = COLOURS if form == "colour" else ("",) * 5
    norm = "" if form == "old" else f"{orange}grad_norm: {1.25:7.4f}  "
    text = (
        f"{red}step: {step:2}  {green}loss: {loss:8.5f}  {norm}memory: {9.46:5.2f}GiB(64.99%)  "
        f"{blue}tps: 1,115,214  tflops: 25.80  mfu: 8.20%{reset}"
    )
    return logged(text, second=step, rank=rank)


def log(losses: Sequence[float], form: str = "colour", last: str = "") -> str:
    starts = "Trainer is initialized with local batch size 8, sequence length 2048, total steps 1000 (warmup 20)"
    lines = [step_line(10 * number or 1, loss, form=form) for number, loss in enumerate(losses)]
    return "".join([logged(starts), logged("Training starts at step 1"), *lines, last])


def written(folder: Path, text: str, name: str = "train.log") -> Path:
    (folder / name).write_text(text)
    return folder / name


LOSSES = falling(101)


@pytest.mark.parametrize("name", ["train.log", "train.txt", "slurm-1.out"])
@pytest.mark.parametrize("form", ["colour", "plain", "old"])
def test_a_healthy_log_raises_no_alarm(tmp_path: Path, name: str, form: str) -> None:
    path = written(tmp_path, log(LOSSES, form, logged("Training completed", second=1001)), name)
    for place in (path, tmp_path):
        report = watched(place)
        assert (codes(report), report.decision) == ([], Decision.GO)
        assert "step 1,000 of 1,000, finished" in report.subject["description"]


def test_quantities_are_those_of_the_line(tmp_path: Path) -> None:
    beat = read_run(written(tmp_path, step_line(10, 7.5))).beats[0]
    assert (beat.step, beat.loss, beat.grad_norm) == (10, 7.5, 1.25)
    assert (beat.memory, beat.tokens_per_second) == (9.46e9, 1_115_214)
    assert beat.ts == pytest.approx((BEGIN + timedelta(seconds=10)).timestamp(), abs=0.01)


def test_a_loss_of_nan_is_found_at_its_step(tmp_path: Path) -> None:
    (found,) = watched(written(tmp_path, log([*LOSSES[:70], *[math.nan] * 31]))).findings
    assert (found.code, "at step 700" in found.message) == ("TRN201", True)


def test_a_loss_that_does_not_fall_is_found(tmp_path: Path) -> None:
    stuck = [8.1 + loss - later for loss, later in zip(falling(101, seed=1), falling(101, seed=2), strict=True)]
    (found,) = watched(written(tmp_path, log(stuck))).findings
    assert (found.code, "to 1000)" in found.message) == ("TRN202", True)


RAISED = """\
[rank0]:[rank0]: Traceback (most recent call last):
[rank0]:[rank0]:   File "trainer.py", line 995, in train_step
[rank0]:[rank0]: {error}
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_a_step_that_torchtitan_refuses_is_found_though_it_prints_no_line_of_it(tmp_path: Path) -> None:
    error = "RuntimeError: Loss is not finite (global_avg_loss=nan) at step 700. Stopping training."
    (found,) = watched(written(tmp_path, log(LOSSES[:70], last=RAISED.format(error=error)))).findings
    assert (found.code, "the loss is nan at step 700" in found.message) == ("TRN201", True)


def test_the_first_error_is_what_ended_the_run(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    (found,) = watched(written(tmp_path, log(LOSSES[:70], last=RAISED.format(error=error)))).findings
    assert found.code == "TRN103"
    assert "after step 690: torch.OutOfMemoryError: CUDA out of memory" in found.message


def test_an_error_before_the_first_step_is_found(tmp_path: Path) -> None:
    text = logged("Training starts at step 1") + RAISED.format(error="ValueError: no")
    assert codes(watched(written(tmp_path, text))) == ["TRN103"]


def test_an_error_that_the_run_survives_is_none(tmp_path: Path) -> None:
    raised = RAISED.format(error="ValueError: no")
    text = log(LOSSES[:70]) + raised + "".join(step_line(10 * n, LOSSES[n]) for n in range(70, 101))
    assert codes(watched(written(tmp_path, text))) == []


@pytest.mark.parametrize("others", ["[rank1]:", "[rank0]:", ""])
def test_a_step_that_several_ranks_print_is_one(tmp_path: Path, others: str) -> None:
    starts = [logged("Training starts at step 1", rank=rank) for rank in ("[rank0]:", others)]
    steps = [step_line(step, loss, rank=rank) for step, loss in enumerate(LOSSES) for rank in ("[rank0]:", others)]
    lines = [*starts, *steps]
    if others == "":
        lines = [line.removeprefix("[rank0]:") for line in lines]
    record = read_run(written(tmp_path, "".join(lines)))
    assert [beat.step for beat in record.steps] == list(range(101))
    assert (record.ranks, len(sessions_of(record))) == ((0,), 1)


def test_a_pipeline_stage_without_a_loss_is_left_out(tmp_path: Path) -> None:
    lines = [line for n, x in enumerate(LOSSES) for line in (step_line(n, -1.0), step_line(n, x, rank="[rank7]:"))]
    assert [beat.loss for beat in read_run(written(tmp_path, "".join(lines))).steps] == pytest.approx(LOSSES, abs=1e-5)


def test_validation_is_an_evaluation(tmp_path: Path) -> None:
    validation = logged("\x1b[33mvalidate step: 10  loss:  3.2500  memory:  1.86GiB(1.95%)  tps: 5,214", second=10)
    record = read_run(written(tmp_path, step_line(10, 3.5) + validation))
    assert [(each.step, each.loss) for each in record.evaluations] == [(10, 3.25)]
    assert [beat.loss for beat in record.beats] == [3.5]


def test_a_resumed_run_says_from_where(tmp_path: Path) -> None:
    again = logged("Training starts at step 691", second=700)
    lines = [step_line(10 * n, LOSSES[n], rank="") for n in range(70, 101)]
    text = log(LOSSES[:71]) + again + "".join(lines)
    report = watched(written(tmp_path, text))
    assert (codes(report), "step 1,000 of 1,000, 2 sessions" in report.subject["description"]) == ([], True)


def test_a_live_log_is_read_on_and_a_line_cut_short_waits(tmp_path: Path) -> None:
    lines = log(LOSSES).splitlines(keepends=True)
    cut = lines[80].index("grad_norm")
    path = written(tmp_path, "".join(lines[:80]) + lines[80][:cut])
    reader = RunReader(path)
    assert len(reader.read().steps) == 78
    with path.open("a") as file:
        file.write(lines[80][cut:-1])
    assert len(reader.read().steps) == 79  # whole, though without its line break
    with path.open("a") as file:
        file.write("\n" + "".join(lines[81:]))
    assert [beat.loss for beat in reader.read().steps] == pytest.approx(LOSSES, abs=1e-5)


def test_other_text_beside_a_log_of_steps_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path, "torch\nnumpy\nTraceback (most recent call last):\nValueError: no\n", "requirements.txt")
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{n},{x}\n" for n, x in enumerate(LOSSES)))
    report = watched(tmp_path)
    assert (codes(report), report.notes) == ([], ())


@pytest.mark.filterwarnings("ignore")  # tensorboard's
@pytest.mark.parametrize("inner", ["", "rank_0"])
def test_its_outputs_lead_to_the_event_files_and_the_checkpoints(tmp_path: Path, inner: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "outputs" / "tb" / "20260101-1200" / inner)) as writer:
        for step, loss in enumerate(LOSSES[:40], start=1):
            writer.add_scalar("loss_metrics/global_avg_loss", loss, step)
            writer.add_scalar("throughput(tps)", 5000.0, step)
            writer.add_scalar("memory/max_active(GiB)", 1.5, step)
            writer.add_scalar("lr/AdamW/0", 1e-3, step)
        writer.add_scalar("validation_metrics/loss", 3.0, 40)
    (tmp_path / "outputs" / "checkpoint" / "step-40").mkdir(parents=True)
    (tmp_path / "outputs" / "checkpoint" / "step-40" / "__0_0.distcp").write_bytes(b"x")
    record = read_run(tmp_path / "outputs")
    assert [beat.loss for beat in record.steps] == pytest.approx(LOSSES[:40])
    beat = record.beats[7]
    assert (beat.tokens_per_second, beat.memory) == (5000.0, 1.5e9)
    assert beat.learning_rate == pytest.approx(1e-3)
    assert [(each.step, each.loss) for each in record.evaluations] == [(40, 3.0)]
    assert record.checkpoints == ("checkpoint/step-40",)


@pytest.mark.filterwarnings("ignore")  # tensorboard's
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("torchtitan.log", "TRN201", "nan at step 140"),
        ("trainer_state.json", "TRN202", "the loss is 4.04 at first and still 4.039"),
        ("metrics.csv", "TRN203", "the loss rises from 2.256"),
        ("events.out.tfevents.1795886583.vm", "TRN203", "the loss rises from 1.495"),
    ],
)
def test_what_a_tool_wrote_of_a_faulty_run_shows_the_fault(name: str, code: str, words: str) -> None:
    (found,) = watched(RECORDED / name).findings
    assert (found.code, words in found.message) == (code, True)
    page = (Path(__file__).parents[4] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"{found.code} {found.message.partition(', as ')[0]}" in page
    assert f"  control    {found.control}" in page or not found.control
