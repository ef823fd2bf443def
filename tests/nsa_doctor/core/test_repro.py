"""The line that reproduces a finding asks the command line for the same thing, whatever names it holds."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.cases import worker_main as child
from nsa_doctor.cases.record import Plant
from nsa_doctor.cli.commands import gate_init as gate_init_command
from nsa_doctor.cli.commands import smoke as smoke_command
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.fuzz_request import fuzz_request
from nsa_doctor.cli.main import app, serve
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.finding import Finding, Report
from nsa_doctor.core.measurement import Measurement, Place, Point, Trouble
from nsa_doctor.core.reproduce import CommandLine, arguments, command_for, reproduce
from nsa_doctor.engine import throughput
from nsa_doctor.engine.floors import load_floors
from nsa_doctor.fuzz import run as fuzzing
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.request import FuzzRequest
from nsa_doctor.fuzz.search import Search
from nsa_doctor.isolation.failures import CrashReport, WorkerDiedError
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.isolation.worker_process import WorkerProcess
from nsa_doctor.render.reproduce import command_line
from nsa_doctor.subject.contract import Subject
from tests.nsa_doctor.artifacts.training_run.runs import write_table

ODD = "an odd 'na\"me' $(touch x) `y`; *"
HUNG = Trouble(kind="timeout", message="no answer in 7 s", phase="forward")
WHOM = ["--config", ODD, "--device", "cuda", "--dtype", "bfloat16", "--seed", "3", "--timeout", "7"]
ASKED = {"config": ODD, "device": "cuda", "dtype": "bfloat16", "seed": 3, "timeout": 7.0}
ASSIGNMENT = ExaminationRequest(config=ODD, device="cuda", dtype="bfloat16", seed=3, timeout=7.0)
FACTS = {"options": ("--config", ODD, "--dtype", "bfloat16"), "dtype": "bfloat16"}
CASE = {"kind": "grid", "sizes": [1, 1, 1, 3, 1], "num_tokens": 1, "query": 0, "slots": []}


def params(words: list[str]) -> dict[str, Any]:
    """What the command line makes of the words after `nsa-doctor`, without running the command."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    return {"command": words[0], **command.make_context(words[0], words[1:]).params}


def read(line: str) -> dict[str, Any]:
    program, *words = shlex.split(line)
    assert program == "nsa-doctor"
    return params(words)


def among(line: str, **wanted: Any) -> bool:
    """Whether the line asks for these."""
    asked = read(line)
    assert {name: asked[name] for name in wanted} == wanted
    return True


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Reports that commands deliver, in place of printing them."""
    delivered: list[Report] = []
    monkeypatch.setattr(Delivery, "__call__", lambda self, report: delivered.append(report) or 0)
    return delivered


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subject hangs while it is loaded, in every command."""

    def load(self: Supervisor) -> list[Measurement]:
        return [Measurement(point=Point(length=self.examination_request.lengths[0]), trouble=HUNG)]

    monkeypatch.setattr(Supervisor, "load", load)


def only(report: Report) -> Finding:
    (found,) = report.findings
    return found


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["sweep", "--seq", "17", "--forward-only"], "sweep"),
        (["run", "--select", "NAN,FWD101,HNG101", "--jobs", "1"], "sweep"),
        (["anomaly", "--seq", "17"], "sweep"),
        (["fuzz", "select"], "sweep"),
        (["throughput", "--seq", "17", "--repeats", "5"], "throughput"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hang_while_loading_is_reproduced_as_it_was_asked(
    words: list[str], command: str, reports: list[Report]
) -> None:
    assert serve([*words, *WHOM, "--quiet"]) == 0
    line = only(reports[0]).repro
    assert among(line, command=command, **ASKED)
    if words[0] == command:
        expected = params([*words, *WHOM])
        assert read(line) == expected


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_a_hang_in_a_check_is_reproduced_where_it_was(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_ask", lambda *_: HUNG)
    asked = replace(ASSIGNMENT, profile=profile)  # type: ignore[arg-type]
    (found,) = Supervisor(asked, facts=dict(FACTS)).check("FWD201", 7.0).findings
    assert among(found.repro, command="run", select="FWD201", profile=profile, **ASKED)


def test_a_hang_in_anomaly_is_reproduced_at_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_ask", lambda *_: HUNG)
    asked = replace(ASSIGNMENT, lengths=(24, 40), are_all_lengths=True)
    (found,) = Supervisor(asked, facts=dict(FACTS)).check("GRD401", 7.0).findings
    assert among(found.repro, command="anomaly", seq="24,40", **ASKED)


def test_a_finding_of_a_check_is_reproduced_as_it_was_asked(small: Subject) -> None:
    examined = replace(small, options=FACTS["options"], device="cuda", dtype="bfloat16", seed=3, timeout=7.0)
    assert among(command_for(examined, "FWD201"), command="run", select="FWD201", profile="quick", **ASKED)


def test_a_time_limit_that_the_command_has_by_itself_is_left_out(small: Subject) -> None:
    assert command_for(replace(small, options=(), timeout=30.0), "FWD201") == "nsa-doctor run --select FWD201 --seed 0"


def test_another_dtype_takes_the_place_of_the_one_examined() -> None:
    line = CommandLine.asked(ASSIGNMENT, FACTS).of(Point(length=5, dtype="float16", values="zeros"))
    assert line.count("--dtype") == 1
    assert among(line, **{**ASKED, "dtype": "float16", "values": "zeros", "seq": "5"})


def test_a_speed_below_its_floor_is_timed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / f"{ODD}.yaml"
    place.write_text("device: cpu\nfloors: [{quantity: train_tokens_per_second, least: 1000, because: x}]")
    request = throughput.ThroughputRequest(examination_request=ASSIGNMENT, repeats=5, floors=load_floors(str(place)))
    row = {"length": 64, "train": [1.0, 1.0, 1.0]}
    state = throughput._State(facts=dict(FACTS), timed=[row], floors=request.floors)
    (found,) = throughput._held_to_floors(request, state).findings
    assert among(found.repro, command="throughput", seq="64", floors=str(place), repeats=5, **ASKED)


def dies(*_: Any, **__: Any) -> None:
    raise WorkerDiedError(-9, CrashReport())


def test_a_source_that_dies_is_opened_again_as_it_was(monkeypatch: pytest.MonkeyPatch, reports: list[Report]) -> None:
    monkeypatch.setattr(WorkerProcess, "ask", dies)
    words = ["data", "--config", ODD, "--dataset", f"text:{ODD}", "--set", f"train.out={ODD}", "--timeout", "7.25"]
    assert serve([*words, "--batches", "3", "--quiet"]) == 0
    assert read(only(reports[0]).repro) == params([*words, "--batches", "3"])


@pytest.mark.parametrize("name", [ODD, f"--{ODD}"], ids=["odd", "like-an-option"])
def test_a_run_is_watched_again_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[Report]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path(f"{name}.csv"), ["n", "loss"], [[step, 2 if step < 60 else "nan"] for step in range(100)])
    words = ["watch", "--map", "step=n", "--select", "TRN201", "--", f"{name}.csv"]
    assert serve(words) == 0
    assert read(only(reports[0]).repro) == params(words)


@pytest.mark.parametrize("place", [ODD, f"--{ODD}"], ids=["odd", "like-an-option"])
def test_steps_of_a_run_are_computed_again_on_the_same_device(place: str) -> None:
    subject = RunSubject(name="x", record=RunRecord(folder="x"), now=0.0, options=arguments((place,)))
    assert among(subject.recomputed("cuda"), command="watch", run_dir=Path(place), recompute=True, device="cuda")


@pytest.mark.parametrize("name", [ODD, f"--{ODD}"], ids=["odd", "like-an-option"])
def test_a_checkpoint_is_read_again_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[Report]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.safetensors").write_bytes(b"\xff" * 64)
    words = ["gate-stats", "--pattern", "*.g $(x)", "--timeout", "7", "--", f"{name}.safetensors"]
    assert serve([*words[:-2], "--quiet", *words[-2:]]) == 0
    found = next(finding for finding in reports[0].findings if finding.code == "CKP101")
    assert read(found.repro) == read(command_line(reports[0])) == params(words)


@pytest.fixture
def request_to_fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FuzzRequest:
    monkeypatch.chdir(tmp_path)
    Path(ODD).write_text("model: {}\n")
    return fuzz_request(
        target="ranges",
        examples=9,
        seed=3,
        minutes=None,
        subject=None,
        config=ODD,
        input_kind=None,
        width=None,
        device="cuda",
        dtype="bfloat16",
        replay=None,
        save=tmp_path / f"{ODD}.json",
        timeout=7.0,
    )


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "not-saved"])
def test_an_input_that_fails_is_tried_again(request_to_fuzz: FuzzRequest, is_saved: bool) -> None:
    request = request_to_fuzz if is_saved else replace(request_to_fuzz, save=Path("/nowhere/x.json"))
    state, failure = fuzzing._State(), Failure(violation=Violation.RAISES, message="x", where=Place())
    fuzzing._conclude_failure(request, "ranges", Search(case=CASE, failure=failure), state)
    (found,) = state.results[0].findings
    if is_saved:
        assert among(found.repro, command="fuzz", replay=request.save, timeout=7.0)
        replay = fuzz_request(**{**dict.fromkeys(NOT_WITH_REPLAY), "replay": request.save, "timeout": 7.0})
        assert replace(replay.examination_request, lengths=()) == replace(request.examination_request, lengths=())
    else:
        assert among(found.repro, command="fuzz", target="ranges", examples=9, **ASKED)


NOT_WITH_REPLAY = (
    *("target", "examples", "seed", "minutes", "subject", "config", "input_kind", "width", "device", "dtype", "save"),
)


def test_a_decision_says_how_it_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stop(request: Any, listen: Any) -> Report:
        asked.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr("nsa_doctor.policy.go_no_go.go_no_go", stop)
    words = ["go-no-go", *WHOM, "--gate", "ci", "--checkpoint", ODD, "--data", ODD]
    serve([*words, "--output", str(tmp_path / "out"), "--quiet"])
    assert read(asked[0].again) == params(words)


def test_a_smoke_run_says_how_it_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []

    def stop(asked: dict[str, Any], *_: Any) -> Report:
        requests.append(asked)
        raise KeyboardInterrupt

    monkeypatch.setattr(smoke_command, "train", lambda *_: "")
    monkeypatch.setattr(smoke_command, "_decided", stop)
    words = ["smoke", "--dataset", f"text:{ODD}", "--set", f"data.tokenizer=file:{ODD}", "--device", "cuda"]
    words += ["--set", "train.seed=3", "--timeout", "7"]
    serve([*words, "--output", str(tmp_path / "out"), "--quiet"])
    assert read(requests[0]["again"]) == params(words)


def test_a_draft_is_tried_on_the_same_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = (Measurement(point=Point(length=8)),)
    report = Report(command="run", subject={"name": "x"}, options={}, environment={}, measurements=measured)
    monkeypatch.setattr("nsa_doctor.engine.run.run", lambda *_: report)
    monkeypatch.setattr("nsa_doctor.policy.policy_draft.draft", lambda *_: "")
    monkeypatch.setattr(gate_init_command.signals, "ignore_signals", lambda: None)
    place = tmp_path / f"{ODD}.yaml"
    assert serve(["gate-init", *WHOM, "--output", str(place), "--quiet"]) == 0
    line = capsys.readouterr().out.rpartition("try it with: ")[2].rstrip("\n")
    assert read(line) == params(["go-no-go", *WHOM, "--gate", str(place)])


def test_a_plant_is_shown_as_it_was_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.cli.main.serve", lambda words: 2)
    words = ["sweep", *WHOM]
    sight = child._sight(Plant(name="x", command=lambda folder: words, expected=lambda report: ""))
    assert read(sight.command) == params(words)


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--seq", "17", "--boundaries", "--values", "zeros"],
        ["run", "--select", "NAN101,NAN102"],
        ["anomaly", "--seq", "17"],
        ["throughput", "--seq", "17", "--repeats", "5"],
        ["fuzz", "select", "--examples", "4"],
    ],
    ids=lambda words: words[0],
)
def test_a_report_says_how_it_is_asked_for_again(words: list[str], reports: list[Report]) -> None:
    assert serve([*words, *WHOM, "--quiet"]) == 0
    named = {**reports[0].subject, "options": FACTS["options"]}
    assert read(command_line(replace(reports[0], subject=named))) == params([*words, *WHOM])


def test_numbers_are_read_back_as_they_were() -> None:
    assert among(reproduce("sweep", timeout=1 / 3), timeout=1 / 3)
    assert reproduce("sweep", timeout=7.0) == "nsa-doctor sweep --timeout 7"


def test_the_time_for_compiling_is_asked_for_again_by_the_command_that_has_it() -> None:
    line = CommandLine.asked(replace(ASSIGNMENT, compile_timeout=60.0), FACTS)
    assert "--compile-timeout 60" in line.check("FWD201")
    assert "--compile-timeout" not in line.of(Point(length=5))
    assert "--compile-timeout" not in CommandLine.asked(ASSIGNMENT, FACTS).check("FWD201")
