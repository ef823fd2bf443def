"""`nsa-doctor go-no-go` and `gate-init`, from the command line to the files and the exit code."""

import errno
import json
import math
import os
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from nsa.config import load_config
from nsa_doctor.cli.delivery import deliver_bundle
from nsa_doctor.cli.main import serve
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.writing import CannotWriteError
from nsa_doctor.engine.session import Session
from nsa_doctor.policy.policy import load_policy
from nsa_doctor.policy.policy_draft import draft
from nsa_doctor.render import bundle
from tests.nsa_doctor.conftest import HERE

SMALL = HERE / "small.yaml"
GATE = """
profile: smoke
require:
  - codes: [FWD101, FWD102, FWD201]
    because: a test asks for these
"""


@pytest.fixture
def gate(tmp_path):
    def writing(text=GATE):
        path = tmp_path / "gate.yaml"
        path.write_text(text)
        return str(path)

    return writing


@pytest.fixture
def run_folder(tmp_path):
    def writing(config, **environment):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "env.json").write_text(json.dumps({"config": config, **environment}))
        beats = [
            {"ts": 10.0 + step, "step": step, "loss": 5.0 - step / 100, "toks_per_s": 400} for step in range(1, 201)
        ]
        (folder / "heartbeat_rank0.jsonl").write_text("\n".join(map(json.dumps, beats)))
        return str(folder)

    return writing


def decide(tmp_path, *words):
    """Exit code and report of one command line."""
    code = serve(["go-no-go", "--output", str(tmp_path / "report"), "--quiet", "--jobs", "1", *words])
    path = tmp_path / "report" / "report.json"
    return code, json.loads(path.read_text()) if path.exists() else None


def a_leaky_subject():
    from tests.gallery.cases import read_cases

    return next(case.spec for case in read_cases() if case.family == "mask_causality_batch_selection_decode")


def test_a_healthy_subject_is_a_go_with_every_file(tmp_path, gate, capsys):
    code, report = decide(tmp_path, "--gate", gate(), "--config", str(SMALL))
    output = capsys.readouterr().out
    assert (code, report["decision"]) == (0, "GO")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(bundle.FILES)
    assert output.startswith("GO by policy gate (profile smoke, file sha256 ")
    order = [output.index(f"\n{label}") for label in ("why", "examined", "checks", "missing", "reproduce")]
    assert order == sorted(order)


def nan_bearing(path):
    torch.save({"out.weight": torch.full((4, 4), float("nan"))}, path)


def truncated(path):
    torch.save({"out.weight": torch.ones(64, 64)}, path)
    path.write_bytes(path.read_bytes()[:5000])


class RunsACommand:
    def __reduce__(self):
        return os.system, ("true",)


def unsafe(path):
    torch.save({"out.weight": RunsACommand()}, path)


@pytest.mark.parametrize("spoilt", [nan_bearing, truncated, unsafe])
def test_a_checkpoint_is_judged_whatever_the_policy_says_of_it(tmp_path, gate, spoilt):
    spoilt(tmp_path / "model.pt")
    words = ("--gate", gate(), "--config", str(SMALL), "--checkpoint", str(tmp_path / "model.pt"))
    code, report = decide(tmp_path, *words)
    failed = [each for each in report["verdict"]["required"] if each["stands"] == "failed"]
    assert (code, report["decision"]) == (1, "NO-GO")
    assert failed
    assert {each["code"][:3] for each in failed} == {"CKP"}
    assert failed[0]["because"] == "--checkpoint was given, and what is given is judged"


@pytest.mark.parametrize("word", ["GAT", "GAT201"])
def test_an_unsafe_checkpoint_is_judged_where_the_policy_speaks_of_gates_alone(tmp_path, gate, word):
    unsafe(tmp_path / "model.pt")
    asked = gate(f"{GATE}  - codes: [{word}]\n    because: a test asks for it\n    where_offered: true\n")
    code, report = decide(tmp_path, "--gate", asked, "--config", str(SMALL), "--checkpoint", str(tmp_path / "model.pt"))
    assert (code, report["decision"]) == (1, "NO-GO")
    assert "CKP102" in report["verdict"]["why"][0]
    assert "is unsafe" in report["verdict"]["why"][0]


def test_a_run_is_judged_by_its_checks_where_the_policy_has_no_limit_for_it(tmp_path, gate, run_folder):
    folder = Path(run_folder({}))
    beats = [json.dumps({"ts": 10.0 + step, "step": step, "loss": math.nan}) for step in range(1, 201)]
    (folder / "heartbeat_rank0.jsonl").write_text("\n".join(beats))
    code, report = decide(tmp_path, "--gate", gate(), "--config", str(SMALL), "--run", str(folder))
    stands = {each["code"]: each["stands"] for each in report["verdict"]["required"]}
    assert (code, stands["TRN201"]) == (1, "failed")


def test_the_command_it_prints_asks_the_same(tmp_path, gate):
    _, first = decide(tmp_path, "--gate", gate(), "--config", str(SMALL), "--seed", "3")
    words = first["verdict"]["again"].split()[2:]
    _, second = decide(tmp_path, *words)
    assert second["verdict"] == first["verdict"]
    assert second["subject"]["identity"] == first["subject"]["identity"]


def test_a_leak_is_a_no_go_and_an_accepted_one_is_not(tmp_path, gate, capsys):
    subject = a_leaky_subject()
    code, report = decide(tmp_path, "--gate", gate(), "--subject", subject)
    finding = next(each for result in report["results"] for each in result["findings"])
    assert (code, report["decision"]) == (1, "NO-GO")
    assert finding["message"] in report["verdict"]["why"][0]
    accepting = (
        f"{GATE}accept:\n  - fingerprint: {json.dumps(finding['fingerprint'])}\n    because: a test accepts it\n"
    )
    code, report = decide(tmp_path, "--gate", gate(accepting), "--subject", subject)
    assert (code, report["verdict"]["accepted"][0]["because"]) == (0, "a test accepts it")
    assert "a test accepts it" in capsys.readouterr().out


@pytest.mark.full
def test_a_baseline_lets_known_findings_stay_only_for_a_reason(tmp_path, gate):
    words = ("--gate", gate(), "--subject", a_leaky_subject())
    decide(tmp_path, *words)
    old = tmp_path / "old.json"
    (tmp_path / "report" / "report.json").replace(old)
    code, report = decide(tmp_path, *words, "--baseline", str(old))
    assert (code, len(report["verdict"]["baseline"]["unchanged"])) == (1, 1)
    code, report = decide(tmp_path, *words, "--baseline", str(old), "--because", "known since the first run")
    assert (code, report["decision"]) == (0, "GO")


def test_a_baseline_of_another_subject_is_none(tmp_path, gate):
    decide(tmp_path, "--gate", gate(), "--subject", a_leaky_subject())
    old = tmp_path / "old.json"
    (tmp_path / "report" / "report.json").replace(old)
    code, report = decide(tmp_path, "--gate", gate(), "--config", str(SMALL), "--baseline", str(old))
    assert (code, report["decision"]) == (3, "UNKNOWN")
    assert "is a report on" in report["verdict"]["why"][0]


def test_a_run_of_another_configuration_makes_unknown_and_names_both(tmp_path, gate, run_folder):
    folder = run_folder(load_config("train_showcase").model_dump(mode="json"))
    code, report = decide(tmp_path, "--gate", gate(), "--config", str(SMALL), "--run", folder)
    assert (code, report["decision"]) == (3, "UNKNOWN")
    assert folder in report["verdict"]["why"][0]
    assert str(SMALL) in report["verdict"]["why"][0]


@pytest.mark.parametrize(("least", "code"), [(200, 0), (201, 1)])
def test_a_run_is_held_to_the_limits(tmp_path, gate, run_folder, least, code):
    folder = run_folder(yaml.safe_load(SMALL.read_text()))
    limit = f"limits: [{{measure: steps, at_least: {least}, because: a test says so}}]"
    assert decide(tmp_path, "--gate", gate(limit), "--config", str(SMALL), "--run", folder)[0] == code


def test_a_limit_without_a_run_is_unknown(tmp_path, gate):
    limit = "limits: [{measure: steps, at_least: 1, because: a test says so}]"
    assert decide(tmp_path, "--gate", gate(limit), "--config", str(SMALL))[0] == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--gate", "nowhere.yaml"), "--policy 'nowhere.yaml': cannot be read"),
        (("--run", "nowhere"), "--run nowhere: no such folder"),
        (("--baseline", "nowhere.json"), "--baseline nowhere.json: there is no such file"),
        (("--because", "x"), "--because gives the reason for a --baseline"),
        (("--config", "nowhere"), "nowhere"),
        (("--subject", "nowhere"), "--subject must be package.module:factory"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(tmp_path, words, complaint, capsys):
    code, report = decide(tmp_path, *words)
    error = capsys.readouterr().err
    assert (code, report) == (2, None)
    assert complaint in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, gate, capsys):
    (tmp_path / "file").write_text("mine")
    code = serve(["go-no-go", "--gate", gate(), "--output", str(tmp_path / "file")])
    assert code == 2
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_fills_up_leaves_the_old_report(tmp_path, monkeypatch):
    report = Report(command="go-no-go", subject={"name": "x"}, options={"seed": 0}, environment={})
    bundle.write_bundle(tmp_path, report)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    synced = []

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CannotWriteError, match="No space left on device"):
        bundle.write_bundle(tmp_path, Report(command="run", subject={"name": "y"}, options={"seed": 1}, environment={}))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.full
def test_a_drafted_gate_is_one_that_the_subject_passes(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    words = ["--config", str(SMALL), "--profile", "smoke", "--output", str(path), "--quiet", "--jobs", "1"]
    assert serve(["gate-init", *words]) == 0
    drafted = load_policy(str(path))
    assert {"FWD101", "NAN101"} <= set(drafted.codes)
    assert all(each.because for each in drafted.require)
    assert decide(tmp_path, "--gate", str(path), "--config", str(SMALL))[0] == 0
    assert serve(["gate-init", *words]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.full
def test_a_drafted_gate_requires_what_fails_and_offers_to_accept_it(tmp_path, run_folder):
    path = tmp_path / "mine.yaml"
    folder = run_folder({}, device_name="NVIDIA A100")
    subject = a_leaky_subject()
    words = ["--subject", subject, "--profile", "smoke", "--output", str(path), "--run", folder]
    assert serve(["gate-init", *words, "--quiet", "--jobs", "1"]) == 0
    text = path.read_text()
    speed = next(limit for limit in load_policy(str(path)).limits if limit.measure == "tokens_per_second")
    assert (speed.at_least, speed.device) == (320, "NVIDIA A100")
    assert "# accept:" in text
    code, report = decide(tmp_path, "--gate", str(path), "--subject", subject)
    assert (code, report["decision"]) == (1, "NO-GO")


def test_a_folder_in_the_place_of_a_report_is_refused_before_the_work(tmp_path, gate, capsys):
    (tmp_path / "report.md").mkdir()
    assert serve(["go-no-go", "--gate", gate(), "--output", str(tmp_path)]) == 2
    assert "report.md: is a folder" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_reported_all_the_same(tmp_path, capsys):
    (tmp_path / "file").touch()
    report = Report(command="go-no-go", subject={"name": "x"}, options={"seed": 0}, environment={})
    with pytest.raises(CannotWriteError):
        deliver_bundle(report, tmp_path / "file", traceback=False)
    assert "UNKNOWN" in capsys.readouterr().out


@pytest.mark.parametrize("device_name", ["GPU \N{GRINNING FACE}", "x" * 300, "a\ud800b", "two\nlines"])
def test_a_drafted_gate_can_be_read_whatever_the_run_said(tmp_path, device_name):
    measured = {"steps": 1234567.0, "tokens_per_second": 1.25e6}
    report = Report(
        command="run",
        subject={"name": "x"},
        options={},
        environment={},
        results=(Result(code="FWD101", name="n", verdict=Verdict.PASS),),
    )
    path = tmp_path / "mine.yaml"
    path.write_text(draft(report, measured, device_name), encoding="utf-8")
    steps, speed = load_policy(str(path)).limits
    assert (steps.bound, speed.bound) == (1234567, 1e6)
    assert speed.device.lower() in device_name.lower()


def test_the_command_that_a_drafted_gate_comes_with_can_be_pasted(tmp_path, run_folder, capsys):
    path = tmp_path / "my gate.yaml"
    words = ["--subject", a_leaky_subject(), "--input", "embeddings", "--run", run_folder({})]
    assert serve(["gate-init", *words, "--profile", "smoke", "--output", str(path), "--quiet", "--jobs", "1"]) == 0
    line = shlex.split(capsys.readouterr().out.partition("try it with: ")[2])
    assert line[2:4] == ["--policy", str(path)]
    assert set(words) <= set(line)


def test_what_hangs_is_tried_again_with_the_options_given():
    session = Session(ExaminationRequest(spec="a.b:c", input="tokens", width=9), frozenset())
    assert session._command().options == ("--subject", "a.b:c", "--input", "tokens", "--width", "9")
