"""report.json read back: exactly what was written, and one sentence for everything else."""

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nsa_doctor.artifacts.checkpoint import record
from nsa_doctor.core import finding, measurement, policy_verdict, power, proof
from nsa_doctor.render import json as as_json
from nsa_doctor.render import reading
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import UnreadableReportError, parse_report, read_report
from nsa_doctor.render.report_format.document import Document, json_schema
from nsa_doctor.render.report_format.objection import objection
from tests.nsa_doctor.reports import examined, ruled

WRITTEN = as_json.render(ruled())
RECORD = json.loads(WRITTEN)
DOCUMENT = json.loads(json_schema())
VALIDATOR = jsonschema.Draft202012Validator(DOCUMENT)


def refusal(content: bytes | str) -> str:
    with pytest.raises(UnreadableReportError) as caught:
        parse_report(content)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 400
    return sentence


def changed(path: str, value: Any) -> str:
    """The report with one value replaced; `results.1.findings.0.message` says which, and a missing key is added."""
    record = copy.deepcopy(RECORD)
    *way, last = (int(step) if step.isdecimal() else step for step in path.split("."))
    place = record
    for step in way:
        place = place[step]
    place[last] = value
    return json.dumps(record)


# The schema

# What a report of the same version need not have: it was written before there was such a field.
ADDED_LATER = {
    "Finding": {"help"},
    "Place": {"library"},
    "Result": {"further", "examined"},
    "PolicyVerdict": {"power"},
    "FamilyRecall": {"measured"},
    "Proof": {"counts"},
}


def test_a_change_of_the_format_is_seen(golden: Callable[[str, str], None]) -> None:
    golden("report.schema.json", json_schema())


def test_the_schema_is_one_and_has_a_version() -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["$id"] == f"urn:nsa-doctor:report:{as_json.VERSION}"
    assert DOCUMENT["properties"]["version"]["const"] == as_json.VERSION
    assert DOCUMENT["properties"]["format"]["const"] == as_json.FORMAT


@pytest.mark.parametrize(
    ("name", "kind", "derived"),
    [
        ("Finding", finding.Finding, {"fingerprint", "help"}),
        ("Result", finding.Result, set()),
        ("Place", measurement.Place, set()),
        ("Point", measurement.Point, set()),
        ("Census", measurement.Census, set()),
        ("Trouble", measurement.Trouble, set()),
        ("Measurement", measurement.Measurement, set()),
        ("PolicyVerdict", policy_verdict.PolicyVerdict, set()),
        ("Required", policy_verdict.Required, set()),
        ("LimitResult", policy_verdict.LimitResult, set()),
        ("Accepted", policy_verdict.Accepted, set()),
        ("Compared", policy_verdict.Compared, set()),
        ("Power", power.Power, set()),
        ("FamilyRecall", power.FamilyRecall, set()),
        ("Proof", proof.Proof, {"counts"}),
        ("MutantFate", proof.MutantFate, set()),
        ("Gate", record.GateRecord, {"checkpoint", "verdict", "illnesses"}),
        ("Figures", record.Figures, set()),
        ("Probe", record.Probe, set()),
        ("Branch", record.Branch, set()),
        ("Drift", record.Drift, set()),
    ],
)
def test_the_schema_names_every_field_of_a_record_and_no_other(name: str, kind: type, derived: set[str]) -> None:
    schema = DOCUMENT["$defs"][name]
    assert set(schema["properties"]) == {part.name for part in fields(kind)} | derived
    assert set(schema["required"]) == set(schema["properties"]) - ADDED_LATER.get(name, set())
    assert schema["additionalProperties"] is False


def test_the_schema_names_every_field_of_a_report() -> None:
    assert set(DOCUMENT["properties"]) == {part.name for part in fields(finding.Report)} | {
        "format",
        "version",
        "decision",
    }


def test_the_schema_knows_every_word_that_is_one_of_few() -> None:
    definitions = DOCUMENT["$defs"]
    assert definitions["Point"]["properties"]["mode"]["enum"] == list(measurement.MODES)
    assert definitions["Point"]["properties"]["values"]["enum"] == list(measurement.VALUES)
    assert definitions["Trouble"]["properties"]["kind"]["enum"] == list(measurement.TroubleKind.__args__)
    assert definitions["Verdict"]["enum"] == list(finding.Verdict)
    assert DOCUMENT["properties"]["decision"]["enum"] == list(finding.Decision)
    assert definitions["PolicyVerdict"]["properties"]["decision"]["enum"] == list(finding.Decision)
    assert definitions["LimitResult"]["properties"]["kept"]["enum"] == list(policy_verdict.LimitStatus.__args__)
    assert definitions["Probe"]["properties"]["activation"]["enum"] == list(record.Activation.__args__)
    assert definitions["MutantFate"]["properties"]["fate"]["enum"] == list(proof.Fate.__args__)


@pytest.mark.parametrize("report", [examined(), ruled()], ids=["examined", "ruled"])
def test_a_report_is_as_its_schema_says(report: finding.Report) -> None:
    VALIDATOR.validate(json.loads(as_json.render(report)))


# What was written is read


def equal(one: Any, other: Any) -> bool:
    """Equality in which NaN is itself."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("report", [examined(), ruled()], ids=["examined", "ruled"])
def test_a_report_comes_back_as_it_was(report: finding.Report) -> None:
    back = parse_report(as_json.render(report))
    assert equal(replace(back, options={}), replace(report, options={}))
    assert back.options == report.options
    assert as_json.render(back) == as_json.render(report)


def test_numbers_that_are_not_finite_come_back_as_numbers() -> None:
    back = parse_report(WRITTEN)
    assert math.isnan(back.findings[2].evidence["bound"])  # type: ignore[arg-type]
    assert back.findings[3].evidence["largest"] == math.inf
    assert math.isnan(back.measurements[1].seconds or 0.0)
    assert back.measurements[1].censuses[0].largest == math.inf


def test_text_that_only_looks_like_a_number_stays_text_where_text_belongs() -> None:
    assert parse_report(changed("results.1.findings.0.message", "NaN")).findings[0].message == "NaN"


def test_a_byte_order_mark_is_no_obstacle() -> None:
    assert parse_report(b"\xef\xbb\xbf" + WRITTEN.encode()).command == "go-no-go"


def test_half_a_character_becomes_a_question_mark() -> None:
    assert parse_report(changed("results.1.findings.0.message", "a\ud800b")).findings[0].message == "a?b"


# Anything else is refused


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "results.1.findings.0.where.line",
            "three",
            'results[1].findings[0].where.line must be a whole number, got "three"',
        ),
        ("results.1.findings.0.where.line", True, "must be a whole number, got true"),
        ("results.1.findings.0.where.line", 1.5, "must be a whole number, got 1.5"),
        ("results.1.findings.0.message", None, "message must be text, got null"),
        ("results.1.findings.0.evidence", [], "evidence must be an object, got a list of 0"),
        (
            "results.1.findings.0.evidence.deep",
            {"a": 1},
            "deep must be text, a number, true or false or null, got an object of 1",
        ),
        ("results.1.findings.0.sauce", "", "results[1].findings[0].sauce is not known"),
        ("results.1.verdict", "FAILED", 'must be "PASS", "FAIL", "SKIP", "CRASH" or "TIMEOUT", got "FAILED"'),
        ("results", {}, "results must be a list, got an object of 0"),
        ("interupted", True, "interupted is not known: did you mean interrupted"),
        ("seconds", "12", 'seconds must be a number, "NaN", "Infinity" or "-Infinity", got "12"'),
        ("seconds", False, "seconds must be a number"),
        ("subject", {}, "subject must have 'name'"),
        ("verdict.baseline", 3, "verdict.baseline must be an object or null, got 3"),
        ("verdict.limits.0.measured", {}, "measured must be a number"),
        ("measurements.0.point.mode", "test", 'must be "train", "eval" or "no_grad"'),
        ("notes.0", "x\n" * 999, None),
        ("notes.0", ["\x1b[31m"], "notes[0] must be text, got a list of 1"),
        ("\x1b[31m", 1, "\\x1b[31m is not known"),
        ("version", 2, "is a report of version 2, and this nsa-doctor reads 1; install a newer nsa-doctor"),
        ("version", 0, "render it with the nsa-doctor that wrote it"),
        ("version", "1", 'version must be 1, got "1"'),
        ("version", True, "version must be 1, got true"),
        ("format", "pytest", "is JSON, and no report"),
        ("decision", "GO", "what it holds makes NO-GO: it was changed by hand"),
        ("verdict.decision", "GO", "says NO-GO, and what it holds makes GO"),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(path: str, value: Any, message: str | None) -> None:
    if message is None:
        assert parse_report(changed(path, value))
    else:
        assert message in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xff\xfe{\x00}\x00", "is not JSON in UTF-8"),
        (b"PK\x03\x04", "is not JSON: line 1, column 1"),
        ("{'format': 1}", "is not JSON: line 1, column 2"),
        ("[]", "is JSON, and no report"),
        ("null", "is JSON, and no report"),
        ('"nsa-doctor-report"', "is JSON, and no report"),
        ("{}", "is JSON, and no report"),
        ('{"format": NaN}', "NaN is no number in JSON"),
        ('{"format": 1e999}', "the number 1e999 is too large"),
        (f'{{"format": {"9" * 5000}}}', "is too large"),
        ('{"format": "a", "format": "nsa-doctor-report"}', "the key 'format' stands twice"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a":' * 100_000, "is nested too deeply"),
        ("[" * 60 + "]" * 60, "is nested too deeply"),
        (" " * (reading._MOST_BYTES + 1), "is larger than 64 MB"),
        (WRITTEN + "x", "is not JSON"),
        (WRITTEN + WRITTEN, "is not JSON"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_what_is_no_report_is_refused(content: bytes | str, message: str) -> None:
    assert message in refusal(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("notes", [1] * 1000),
        ("results.1.findings.0.evidence", {f"a{index}": [] for index in range(1000)}),
        ("results", [RECORD["results"][0] | {"notes": [1]}] * 1000),
        ("gates", [{}] * 1000),
        ("proof.counts", {f"a{index}": "" for index in range(1000)}),
    ],
)
def test_the_first_wrong_entry_ends_the_reading(path: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate(json.loads(changed(path, value)))
    assert caught.value.error_count() < 20  # of one entry, not of each


def test_deep_evidence_of_any_kind_is_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    assert "is nested too deeply" in refusal(changed("environment.deep", deep))


@pytest.mark.parametrize("part", range(40))
def test_a_report_that_was_cut_off_is_called_that(part: int) -> None:
    length = 1 + part * (len(WRITTEN.rstrip()) - 2) // 39
    assert "it was cut off" in refusal(WRITTEN[:length])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from leaves(item, (*path, key))


def is_as_written(record: Any) -> bool:
    try:
        Document.model_validate(record)
    except ValidationError as error:
        return not objection(error)
    return True


odd = st.sampled_from([None, True, 0, -1, 1.5, 10**18, "", "x", "NaN", "train", "GO", [], ["x"], [1], {}, {"a": 1}])


@given(path=st.sampled_from(list(leaves(RECORD))[1:]), value=odd, added=st.booleans(), gone=st.booleans())
def test_the_reader_and_jsonschema_agree_on_what_is_a_report(path: Any, value: Any, added: bool, gone: bool) -> None:
    record = copy.deepcopy(RECORD)
    place = record
    for step in path[:-1]:
        place = place[step]
    if gone:
        del place[path[-1]]
    elif added and isinstance(place, dict):
        place["added"] = value
    else:
        place[path[-1]] = value
    assert is_as_written(record) == VALIDATOR.is_valid(record)


def generated(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, as far as ours goes."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return odd if name == "JsonValue" else generated(DOCUMENT["$defs"][name])
    if "anyOf" in schema:
        return st.one_of([generated(option) for option in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema["enum"] if "enum" in schema else [schema["const"]])
    match schema["type"]:
        case "object":
            own = {key: generated(part) for key, part in schema.get("properties", {}).items()}
            always = {key: own.pop(key) for key in schema.get("required", ())}
            made = st.fixed_dictionaries(always, optional=own)
            others = schema["additionalProperties"]
            if others is False:
                return made
            more = st.dictionaries(st.text(max_size=5), generated(others), max_size=2)
            return st.builds(lambda few, known: {**few, **known}, more, made)
        case "array":
            return st.lists(generated(schema["items"]), max_size=2)
        case "string":
            return st.sampled_from(["", "a", "NaN", "\x1b[2J", "<b>|`\n"]) | st.text(max_size=5)
        case "integer":
            return st.sampled_from([0, 1, 17, -1, 10**18, -(10**18)])
        case "number":
            return st.sampled_from([0, 0.5, -1.0, 1e300, -1e-300, 10**18])
        case "boolean":
            return st.booleans()
    return st.none()


@given(generated(DOCUMENT))
@settings(suppress_health_check=list(HealthCheck), max_examples=60, phases=[Phase.generate])
def test_whatever_the_schema_allows_is_rendered(record: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(record)
    verdicts = {result["verdict"] for result in record["results"]}
    record["decision"] = "NO-GO" if verdicts & {"FAIL", "TIMEOUT"} else "UNKNOWN"
    if record.get("verdict"):
        record["verdict"]["decision"] = record["decision"]
    record["interrupted"] = True
    report = parse_report(json.dumps(record))
    for form in FORMATS:
        text = render_as(report, form)
        assert form != "json" or as_json.render(parse_report(text)) == text
        assert form in ("json", "html") or all(sign == "\n" or sign.isprintable() for sign in text)


# Files


def test_a_file_is_read_and_named_in_what_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(WRITTEN, encoding="utf-8")
    assert as_json.render(read_report(path)) == WRITTEN
    path.write_text("", encoding="utf-8")
    with pytest.raises(UnreadableReportError, match=r"report\.json: is empty"):
        read_report(path)
    with pytest.raises(UnreadableReportError, match="is a folder; give the report"):
        read_report(tmp_path)
    with pytest.raises(UnreadableReportError, match="nowhere: there is no such file"):
        read_report(tmp_path / "nowhere")
    with pytest.raises(UnreadableReportError, match="cannot be read"):
        read_report("a\0b")
    with pytest.raises(UnreadableReportError, match="cannot be read"):
        read_report("x" * 5000)


def test_a_device_that_never_ends_is_refused_at_the_limit() -> None:
    with pytest.raises(UnreadableReportError, match="is larger than 64 MB"):
        read_report("/dev/zero")


def test_standard_input_that_is_closed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, message in ((None, "is closed"), (io.StringIO(), "cannot be read")):
        monkeypatch.setattr("sys.stdin", stream)
        with pytest.raises(UnreadableReportError, match=f"standard input: {message}"):
            read_report("-")
