"""`python -m nsa.train`: what a user types, what is said back, and the exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nsa.train.__main__ as door
from nsa.train.command import main
from nsa_doctor.isolation.forked import ForkedProcess

ROOT = Path(__file__).parents[3]
FILE = """
model: {dim: 16, n_heads: 2, n_kv_groups: 1, d_k: 8, d_v: 8, vocab_size: 256}
nsa: {l: 4, d: 2, l_sel: 4, n_sel: 3, w: 6}
train: {steps: 3, seq_len: 16, batch_size: 2, eval_batches: 1, sample_tokens: 2, log_every: 1}
runtime: {device: cpu}
"""


@pytest.fixture
def ask(tmp_path, capsys, monkeypatch):
    """`ask("--steps", "2", …)`: exit code, what was said, what was complained of; the run is in `run`."""
    (tmp_path / "c.yaml").write_text(FILE)
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)

    def asking(*words):
        try:
            code = main(["--config", str(tmp_path / "c.yaml"), "--out-dir", str(tmp_path / "run"), *words])
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return asking


def test_the_synthetic_data_are_trained_on_to_the_end(ask, tmp_path):
    code, output, complained = ask("--dataset", "synthetic")
    assert (code, complained) == (0, "")
    assert "step 0003/3 | loss 5." in output
    assert "finished: 3 steps" in output
    assert (tmp_path / "run" / "model.pt").exists()


def test_a_local_text_is_trained_on(ask, tmp_path):
    (tmp_path / "it's.txt").write_text("\n\n".join(f"paragraph {number} of a text" for number in range(200)))
    code, _, complained = ask("--dataset", f"text:{tmp_path / chr(105)}t's.txt")
    assert (code, complained) == (0, "")


def test_single_values_may_be_changed(ask):
    assert "step 0002/2 |" in ask("--steps", "2", "--set", "train.lr=1e-3", "--set", "nsa.w=8")[1]


def test_an_unsafe_file_of_weights_ends_in_one_sentence_of_ours(ask, tmp_path):
    (tmp_path / "evil.pt").write_bytes(b"\x80\x02cposix\nsystem\n(S'true'\ntR.")
    code, output, complained = ask("--resume", str(tmp_path / "evil.pt"))
    assert (code, output, len(complained.splitlines())) == (2, "", 1)
    assert "it is unsafe: its pickle asks for 'posix.system'" in complained


def test_an_ended_run_goes_on(ask):
    assert ask("--set", "train.save_every=1")[0] == 0
    code, output, _ = ask("--set", "train.save_every=1", "--resume", "auto")
    assert code == 0
    assert "resumed from step_00000003" in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "train.lr=fast"], "train.lr must be a valid number, got 'fast' (str)"),
        (["--set", "train.speed=1"], "unknown key train.speed"),
        (["--steps", "many"], "train.steps must be a valid integer"),
        (["--dataset", "nonsense"], "data.dataset must be"),
        (["--dataset", "text:/nowhere/x.txt"], "/nowhere/x.txt"),
        (["--resume", "/nowhere"], "--resume /nowhere: no such file or folder"),
        (["--set", "model.vocab_size=99"], "model.vocab_size must be at least 256"),
        (["--set", "runtime.precision=fp16"], "runtime.precision must be fp32 or bf16"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["--out-dir", "/dev/null/x"], "/dev/null"),
        (["--replay", "/nowhere"], "not allowed with argument --config"),
        (["--stpes", "3"], "unrecognized arguments: --stpes"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_sentence_and_a_code(words, sentence, ask):
    code, _, complained = ask(*words)
    assert code == (5 if "--out-dir" in words else 2)
    assert sentence in complained
    assert "Traceback" not in complained


def test_the_help_tells_the_exit_codes(ask):
    code, output, _ = ask("--help")
    assert code == 0
    assert "130 and 143 saved and left" in output


def test_a_folder_with_a_run_is_refused(ask):
    ask()
    code, _, complained = ask()
    assert code == 2
    assert "holds a run" in complained


# As processes of their own.


class Run(ForkedProcess):
    """The command in a fork of this process: signals and pipes are the point, and not the start of the program."""

    def __init__(self, words):
        reading, writing = os.pipe()

        def call():
            os.dup2(writing, 1)
            os.close(writing)
            sys.argv = ["nsa.train", *words]
            door.start()

        super().__init__(call, (writing,))
        os.close(writing)
        self.stdout = os.fdopen(reading)

    def complaints(self):
        """What it has said on standard error, once it has ended."""
        with self.stderr:
            return self.stderr.readall().decode()


@pytest.fixture
def start(tmp_path):
    """`start("--steps", …)` begins a process and waits for its first step; its output goes to a pipe."""
    (tmp_path / "c.yaml").write_text(FILE)
    started = []

    def starting(*words):
        given = ("--config", str(tmp_path / "c.yaml"), "--out-dir", str(tmp_path / "run"), "--steps", "100000", *words)
        process = Run(given)
        started.append(process)
        while "step 0001/" not in process.stdout.readline():
            assert process.poll() is None, process.complaints()
        return process

    yield starting
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_sigterm_saves_and_leaves_with_its_code(start, tmp_path):
    process = start()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    complained = process.complaints()
    assert complained.startswith("nsa.train: stopped by SIGTERM after step ")
    assert "Traceback" not in complained
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1
    assert len(list((tmp_path / "run").glob("stackdump_*.txt"))) == 1


def test_nobody_reading_the_output_does_not_end_the_run(start, tmp_path):
    process = start()
    process.stdout.close()
    lines = (tmp_path / "run" / "training.csv").read_text().count("\n")
    give_up = time.monotonic() + 60
    while (tmp_path / "run" / "training.csv").read_text().count("\n") < lines + 20:
        assert process.poll() is None
        assert time.monotonic() < give_up
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_step_is_a_sentence_and_its_code(number, tmp_path):
    program = f"""
import os, sys, types
import nsa.train.__main__ as door
main = lambda: os.kill(os.getpid(), {int(number)})
sys.modules["nsa.train.command"] = types.SimpleNamespace(leave=sys.exit, main=main)
door.start()
"""
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr.count("\n")) == (128 + number, 1)
    assert answer.stderr.startswith("nsa.train: interrupted before the first step")


def test_the_command_answers_signals_before_it_loads_torch():
    answer = subprocess.run(
        [sys.executable, "-c", "import nsa.train.__main__, sys; print('torch' in sys.modules)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert answer.stdout == "False\n"


def test_a_run_without_standard_streams_trains_and_keeps_its_files_to_itself(tmp_path):
    (tmp_path / "c.yaml").write_text(FILE)
    words = [
        sys.executable,
        "-m",
        "nsa.train",
        "--config",
        "c.yaml",
        "--out-dir",
        "run",
        "--set",
        "data.dataset=synthetic",
    ]
    command = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *words]
    answer = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=60)
    assert answer.returncode == 0
    assert (tmp_path / "run" / "training.csv").read_text().count("\n") == 4
