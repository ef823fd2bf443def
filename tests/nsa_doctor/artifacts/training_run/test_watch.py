"""`nsa-doctor watch` as it is called: a real run, its report in every form, its exit codes, and what is no run."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.finding import Decision
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import read_report
from nsa_doctor.testing.training_runs import document_of, live
from tests.nsa_doctor.artifacts.training_run.runs import beats, codes, falling, watched, write_lines, write_table


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a real run that came to its end, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    live(document_of(folder, steps=24, eval_every=12, save_every=12, eval_batches=1, sample_tokens=0), {})
    return folder


def test_a_healthy_run_is_a_go_and_needs_no_more_to_be_one(finished, doctor):
    answer = doctor("watch", str(finished))
    assert (answer.returncode, answer.stderr) == (0, "")
    text = " ".join(answer.stdout.split())
    assert text.startswith(f"{finished}: step 24 of 24, finished, from heartbeat_rank0.jsonl")
    assert answer.stdout.splitlines()[-1].startswith("GO: ")


def test_watching_starts_without_torch(finished):
    program = (
        "import sys; from nsa_doctor.cli.main import serve; code = serve(['watch', sys.argv[1]]); "
        "print('code', code, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program, str(finished)], check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] == "code 0 False", answer.stdout


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_report_of_a_run_has_every_form(finished, form):
    assert str(finished) in render_as(watched(finished), form) or form in ("github", "junit", "sarif")


def test_the_page_shows_the_run_as_a_picture(finished):
    page = render_as(watched(finished), "html")
    assert "Time line of the run: loss, tokens/s, memory, time between heartbeats" in page


def test_a_report_is_written_and_read_again(finished, doctor, tmp_path):
    path = tmp_path / "report.json"
    assert doctor("watch", str(finished), "--output", str(path), "--quiet").stdout == ""
    report = read_report(path)
    assert (report.command, report.run["folder"]) == ("watch", str(finished))
    assert report.decision is Decision.GO


def test_a_faulty_run_is_a_no_go_that_says_how_to_look_again(tmp_path, doctor):
    rows = [[step, loss if step < 60 else "nan"] for step, loss in enumerate(falling(100))]
    place = write_table(tmp_path / "my run.csv", ["n", "objective"], rows)
    answer = doctor("watch", str(place), "--map", "step=n,loss=objective", "--format", "json")
    report = json.loads(answer.stdout)
    assert (answer.returncode, report["decision"]) == (1, "NO-GO")
    (found,) = [each for result in report["results"] for each in result["findings"]]
    assert found["code"] == "TRN201"
    assert found["repro"] == f"nsa-doctor watch '{place}' --map step=n,loss=objective"


def test_what_is_selected_is_all_that_is_judged(finished):
    results = watched(finished, select="TRN101,DST").results
    assert {result.code for result in results} == {"TRN101", "DST101", "DST102", "DST103", "DST104"}


def test_nothing_to_judge_is_unknown(tmp_path, doctor):
    (tmp_path / "env.json").write_text('{"device": "cpu"}')
    assert doctor("watch", str(tmp_path)).returncode == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing"], "no such folder"),
        (
            ["empty"],
            "holds nothing of a run that can be read; name a folder of TensorBoard events, wandb/offline-run-*",
        ),
        (["requirements.txt"], "requirements.txt: has no line of a step as torchtitan prints it; name a folder of"),
        (["model.pt"], "is neither a folder nor a log"),
        (
            ["model.pt"],
            "trainer_state.json, Lightning's metrics.csv, torchtitan's log or outputs folder, any other log",
        ),
        (["log.csv", "--map", "loss=lossy"], "--map loss=lossy: log.csv has no such column: did you mean loss"),
        (["log.csv", "--map", "los=loss"], "--map knows no quantity 'los': did you mean loss"),
        (["log.csv", "--map", "loss"], "--map must read QUANTITY=COLUMN"),
        (["log.csv", "--map", "loss=a", "--map", "loss=b"], "--map gives loss twice"),
        (["log.csv", "--every", "0"], "--every must be a number of seconds from 0.1"),
        (["log.csv", "--select", "FWD"], "FWD examines a module"),
        (["log.csv", "--output", "."], "is a folder"),
        (["missing", "--follow", "--format", "pdf"], "--format cannot be 'pdf'"),
        (["model.pt", "--follow"], "is neither a folder nor a log"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, words, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.pt").write_bytes(b"PK")
    (tmp_path / "requirements.txt").write_text("torch\n")
    write_table(tmp_path / "log.csv", ["step", "loss"], [[1, 2.0], [2, 1.9]])
    monkeypatch.chdir(tmp_path)
    assert serve(["watch", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert (said.err.count("\n"), said.out) == (1, "")


def test_a_closed_pipe_is_no_traceback(finished):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "nsa_doctor", "watch", str(finished)]
    answer = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_text_of_a_run_is_escaped(tmp_path):
    path = write_lines(tmp_path / "heartbeat_rank0.jsonl", [*beats(30), {"msg": "error: \x1b[2J\x07 no"}])
    text = render_as(watched(path.parent), "terminal")
    assert "\\x1b[2J\\x07 no" in text
    assert "\x1b" not in text


def test_a_run_goes_into_a_gate_with_the_checks_it_requires(finished, doctor, tmp_path):
    gate = tmp_path / "gate.yaml"
    gate.write_text(
        "require:\n  - codes: [TRN101, TRN104, CKP104]\n    because: it has to go on\n    where_offered: true\n"
    )
    words = ["go-no-go", "--gate", str(gate), "--run", "run", "--config", str(finished.parent / "config.yaml")]
    (finished.parent / "config.yaml").write_text(_YAML)
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000024")
    answer = doctor(*words, cwd=tmp_path)
    assert (answer.returncode, "TRN104 the checkpoint of step 24 was saved and is gone" in answer.stdout) == (1, True)
    assert codes(read_report(tmp_path / "go-no-go" / "report.json")) == ["TRN104"]


_YAML = """\
model: {dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, vocab_size: 256}
nsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, w: 16}
"""
