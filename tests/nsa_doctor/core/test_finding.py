"""A finding's fingerprint, a report's decision, and the command line that asks for a report again."""

import json
import shlex
from dataclasses import asdict, replace

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Decision, Finding, Note, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.render.reproduce import command_line
from tests.nsa_doctor.reports import examined, ruled

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


@pytest.mark.parametrize("located", [FOUND, Note(message="odd", where=WHERE)], ids=["finding", "note"])
def test_a_place_can_be_read_without_where(located: Finding | Note) -> None:
    assert (located.module, located.file, located.line) == (WHERE.module, WHERE.file, WHERE.line)


def test_a_finding_says_how_to_reproduce_it() -> None:
    assert FOUND.reproduce == FOUND.repro != ""


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


@pytest.mark.parametrize("name", ["branch", "option", "parts", "property", "quantity", "seam", "target"])
def test_evidence_that_names_what_is_wrong_tells_two_faults_apart(name: str) -> None:
    one, other = (replace(FOUND, evidence={name: value}).fingerprint for value in ("a", "b"))
    assert len({one, other, replace(FOUND, evidence={}).fingerprint}) == 3
    assert replace(FOUND, evidence={f"the {name}": "a"}).fingerprint == replace(FOUND, evidence={}).fingerprint


def test_the_words_of_a_report_are_what_its_readers_know() -> None:
    assert [verdict.value for verdict in Verdict] == ["PASS", "FAIL", "SKIP", "CRASH", "TIMEOUT"]
    assert {decision.value: decision.exit_code for decision in Decision} == {"GO": 0, "NO-GO": 1, "UNKNOWN": 3}


@pytest.mark.parametrize(
    ("verdict", "is_required", "alone", "beside_a_pass"),
    [
        (Verdict.SKIP, True, Decision.UNKNOWN, Decision.UNKNOWN),
        (Verdict.SKIP, False, Decision.UNKNOWN, Decision.GO),
        (Verdict.CRASH, False, Decision.UNKNOWN, Decision.UNKNOWN),
        (Verdict.FAIL, False, Decision.NO_GO, Decision.NO_GO),
        (Verdict.TIMEOUT, False, Decision.NO_GO, Decision.NO_GO),
        (Verdict.PASS, False, Decision.GO, Decision.GO),
    ],
)
def test_what_does_not_apply_stands_in_no_way_and_proves_nothing(
    verdict: Verdict, is_required: bool, alone: Decision, beside_a_pass: Decision
) -> None:
    end = Result(code="FWD102", name="x", verdict=verdict, is_required=is_required)
    assert replace(report(), results=(end,)).decision is alone
    assert replace(report(), results=(*report(Verdict.PASS).results, end)).decision is beside_a_pass


def test_a_failure_is_a_no_go_though_a_person_stopped_it() -> None:
    assert report(Verdict.FAIL, interrupted=True).decision is Decision.NO_GO


def test_what_is_not_said_is_empty() -> None:
    assert Finding(message="m") == Finding(
        message="m", where=Place(), evidence={}, control="", repro="", code="", also=()
    )
    end = Result(code="FWD101", name="x", verdict=Verdict.PASS)
    assert end == Result(
        code="FWD101",
        name="x",
        verdict=Verdict.PASS,
        findings=(),
        reason="",
        seconds=0.0,
        notes=(),
        is_required=True,
        further=(),
    )
    assert end.remark == ""
    empty = Report(command="run", subject={}, options={}, environment={})
    assert empty == replace(
        empty, results=(), measurements=(), notes=(), seconds=0.0, interrupted=False, throughput={}, run={}, gates=()
    )
    assert (empty.verdict, empty.findings, empty.remarks, empty.num_findings) == (None, (), (), 0)


def test_a_note_is_reported_with_its_place() -> None:
    assert str(Note(message="it starts at zero")) == "it starts at zero"
    assert str(Note(message="it starts at zero", where=Place(module="gate"))) == "it starts at zero (gate)"


def test_a_report_counts_what_its_results_found_in_their_order() -> None:
    many = [replace(FOUND, where=Place(module=str(number))) for number in range(5)]
    ends = [Result(code="FWD201", name="x", verdict=Verdict.FAIL).with_findings(found) for found in (many, [FOUND])]
    made = replace(report(), results=tuple(ends), notes=("a note",))
    assert made.findings == (*many[:3], FOUND)
    assert made.num_findings == 6
    assert made.remarks == ("a note", "FWD201: and 2 more of the same check")


def test_a_result_survives_its_way_through_json() -> None:
    many = [replace(FOUND, where=Place(module=str(number), line=number)) for number in range(5)]
    end = Result(
        code="FWD201", name="x", verdict=Verdict.FAIL, reason="r", seconds=2.5, notes=("n",), is_required=False
    ).with_findings(many)
    record = json.loads(json.dumps(asdict(end)))
    assert Result.from_json(record) == end
    assert isinstance(Result.from_json(record).verdict, Verdict)
    del record["further"]
    assert Result.from_json(record) == replace(end, further=())


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
    assert command_line(ruled()).startswith("nsa-doctor go-no-go --policy production")
    assert command_line(examined()).startswith("nsa-doctor run --select FWD,NAN101 --profile quick --subject")
