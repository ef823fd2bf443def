"""A finding's fingerprint, a report's decision, and the command line that asks for a report again."""

import shlex
from dataclasses import replace

import pytest

from nsa_doctor import registry
from nsa_doctor.finding import Decision, Finding, Report, Result, Verdict
from nsa_doctor.measurement import Place
from nsa_doctor.render.again import command_line

from .reports import examined, ruled

WHERE = Place(module="layers.0.attn", module_class="Attention", file="/a/b/attn.py", line=7, function="forward")
FOUND = Finding(
    code="FWD201",
    message="token 40 changes by 0.31",
    where=WHERE,
    evidence={"length": 128, "error": 0.31, "branch": "select"},
    control="unchanged at S=64",
    repro="nsa-doctor run --select FWD201 --seed 0",
    also=("FWD202",),
)


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, message="token 7 changes by 0.2", control="", repro="nsa-doctor run --seed 1", also=()),
        replace(FOUND, evidence={"length": 64, "error": float("nan"), "branch": "select"}),
        replace(FOUND, where=replace(WHERE, line=99)),
        replace(FOUND, where=replace(WHERE, file="/home/else/src/attn.py")),
        replace(FOUND, where=replace(WHERE, file="C:\\work\\attn.py")),
    ],
    ids=["seed", "numbers", "line", "machine", "windows"],
)
def test_the_same_fault_has_the_same_fingerprint(other: Finding) -> None:
    assert other.fingerprint == FOUND.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, code="FWD202"),
        replace(FOUND, where=replace(WHERE, module="layers.1.attn")),
        replace(FOUND, where=replace(WHERE, module_class="Other")),
        replace(FOUND, where=replace(WHERE, function="_select")),
        replace(FOUND, where=replace(WHERE, file="/a/b/gate.py")),
        replace(FOUND, evidence={**FOUND.evidence, "branch": "slide"}),
    ],
    ids=["code", "module", "class", "function", "file", "branch"],
)
def test_another_fault_has_another_fingerprint(other: Finding) -> None:
    assert other.fingerprint != FOUND.fingerprint


def test_a_fingerprint_does_not_change_between_versions() -> None:
    assert FOUND.fingerprint == "5f63b887d692c983"
    assert Finding(message="\ud800", where=Place(file="\udcff.py")).fingerprint.isalnum()


def report(*verdicts: Verdict, **more) -> Report:
    results = tuple(Result(code="FWD101", name="x", verdict=verdict) for verdict in verdicts)
    return Report(command="run", subject={"name": "x"}, options={}, environment={}, results=results, **more)


@pytest.mark.parametrize(
    ("made", "decision", "code"),
    [
        (report(Verdict.PASS), Decision.GO, 0),
        (report(Verdict.PASS, Verdict.FAIL, Verdict.SKIP), Decision.NO_GO, 1),
        (report(Verdict.TIMEOUT), Decision.NO_GO, 1),
        (report(Verdict.PASS, Verdict.SKIP), Decision.UNKNOWN, 3),
        (report(Verdict.PASS, Verdict.CRASH), Decision.UNKNOWN, 3),
        (report(), Decision.UNKNOWN, 3),
        (report(Verdict.PASS, interrupted=True), Decision.UNKNOWN, 3),
        (replace(report(Verdict.PASS), verdict=ruled().verdict), Decision.NO_GO, 1),
    ],
)
def test_only_a_full_pass_is_a_go_and_a_gate_has_the_last_word(made: Report, decision: Decision, code: int) -> None:
    assert made.decision is decision
    assert made.decision.exit_code == code


def asked(command: str, options: dict[str, object], named: tuple[str, ...] = ()) -> str:
    subject = {"name": "x", "dtype": "float32", "options": named}
    return command_line(Report(command=command, subject=subject, options=options, environment={}))


EVERY = [entry.manual.code for entry in registry.select((), (), "quick")]
SWEPT = {"lengths": [16, 17], "dtypes": ["float32"], "values": ["normal"], "seed": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("run", {"checks": EVERY, "profile": "quick", "seed": 3}, "run --profile quick --seed 3"),
        (
            "run",
            {"checks": ["FWD201", "NAN101"], "profile": "full", "seed": 0, "dtype": "bfloat16", "device": "cuda"},
            "run --select FWD201,NAN101 --profile full --dtype bfloat16 --device cuda --seed 0",
        ),
        ("sweep", SWEPT, "sweep --seq 16,17 --seed 0"),
        (
            "sweep",
            {**SWEPT, "dtypes": ["float32", "bfloat16"], "values": ["zeros"], "boundaries": True, "forward_only": True},
            "sweep --seq 16,17 --dtype float32,bfloat16 --values zeros --boundaries --forward-only --seed 0",
        ),
        ("anomaly", {"lengths": [512], "seed": 0}, "anomaly --seq 512 --seed 0"),
        ("throughput", {"lengths": [64], "floors": "cpu", "seed": 0}, "throughput --seq 64 --floors cpu --seed 0"),
        ("fuzz", {"targets": ["select"], "examples": 20, "seed": 1}, "fuzz select --examples 20 --seed 1"),
        ("fuzz", {"targets": ["ranges", "masks"], "examples": 20, "seed": 1}, "fuzz all --examples 20 --seed 1"),
        (
            "gate-stats",
            {"pattern": "*.g", "num_branches": 2, "seed": 0},
            "gate-stats --pattern '*.g' --num-branches 2 --seed 0",
        ),
    ],
)
def test_a_report_says_how_to_ask_for_it_again(command: str, options: dict[str, object], words: str) -> None:
    assert asked(command, options) == f"nsa-doctor {words}"


def test_the_subject_is_named_as_it_was_and_quoted() -> None:
    line = asked("sweep", SWEPT, ("--subject", "a:b", "--config", "my file; rm -rf /"))
    assert shlex.split(line)[4:8] == ["--subject", "a:b", "--config", "my file; rm -rf /"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", {}),
        ("run", {"checks": ["FWD"], "profile": "deep", "seed": 0}),
        ("sweep", {"seed": 0}),
        ("sweep", {"lengths": [1]}),
        ("fuzz", {"targets": ["select"], "replay": "x.json", "seed": 0}),
        ("watch", {"seed": 0}),
    ],
)
def test_nothing_is_claimed_where_the_report_does_not_tell_enough(command: str, options: dict[str, object]) -> None:
    assert asked(command, options) == ""


def test_a_ruling_says_itself_how_to_ask_again() -> None:
    assert command_line(ruled()).startswith("nsa-doctor go-no-go --gate production")
    assert command_line(examined()).startswith("nsa-doctor run --select FWD,NAN101 --profile quick --subject")
