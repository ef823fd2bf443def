"""Every format: compared with a golden file, held against its schema, and shown texts that try to break out of it."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.text import escaped
from nsa_doctor.render.formats import FORMATS, format_of, render_as
from nsa_doctor.render.reading import parse_report
from nsa_doctor.render.summary import ordered_findings
from tests.nsa_doctor.reports import HOSTILE, MANUALS, REPOSITORY, examined, filled, finding, place, ruled

SCHEMAS = Path(__file__).parents[2] / "schemas"
GOLDEN = {"terminal": "txt", "json": "json", "md": "md", "junit": "xml", "sarif": "sarif", "github": "github"}
HARMLESS = "harmless"
COMMAND = re.compile(r"::(?P<level>error|warning|notice) (?P<properties>[^:]*)::(?P<message>.*)")
hostile = pytest.mark.parametrize("name", HOSTILE)


@pytest.fixture
def manuals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden files do not change with a check's manual."""
    monkeypatch.setattr(registry, "manuals", lambda: MANUALS)


@pytest.fixture(scope="module")
def sarif_schema() -> Any:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / "sarif-2.1.0.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def junit_schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(SCHEMAS / "junit.xsd")


def both(name: str, make: Callable[[], Report] = ruled) -> tuple[Report, Report]:
    """A report full of a hostile text, and the same full of a harmless one."""
    return filled(make(), lambda _: HOSTILE[name]), filled(make(), lambda _: HARMLESS)


@pytest.mark.parametrize("form", GOLDEN)
def test_a_report_looks_like_its_golden_file(form: str, golden: Callable[[str, str], None], manuals: None) -> None:
    golden(f"report.{GOLDEN[form]}", render_as(examined(), form))


@pytest.mark.parametrize("form", ["json", "md", "junit", "sarif", "github"])
def test_a_ruling_looks_like_its_golden_file(form: str, golden: Callable[[str, str], None], manuals: None) -> None:
    golden(f"ruling.{GOLDEN[form]}", render_as(ruled(), form))


@pytest.mark.parametrize("make", [examined, ruled])
def test_what_a_family_s_line_goes_on_with_stands_below_its_counts(make: Callable[[], Report]) -> None:
    results = [
        Result(code=f"FWD{number}", name="x", verdict=verdict, reason="it crashed")
        for number, verdict in enumerate([*[Verdict.FAIL] * 3, *[Verdict.CRASH] * 3, *[Verdict.TIMEOUT] * 3], start=101)
    ]
    lines = render_as(replace(make(), results=tuple(results)), "terminal").splitlines()
    (start,) = [index for index, line in enumerate(lines) if "FWD  forward" in line]
    column = lines[start].index("3 FAIL")
    assert lines[start + 1][:column].strip() == ""
    assert lines[start + 1][column] != " "
    assert max(len(line) for line in lines[start : start + 2]) <= 80


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("nsa (m7c_125m_fast_log)", [], 2),
        ("nsa (mine.yaml)", ["--config", "mine.yaml"], 0),
        ("nsa:make", ["--subject", "nsa:make"], 0),
    ],
    ids=["nothing named", "configuration", "subject"],
)
def test_a_terminal_says_twice_that_the_built_in_example_was_examined(
    name: str, options: list[str], count: int
) -> None:
    report = replace(examined(), command="run", subject={"name": name, "options": options})
    text = " ".join(render_as(report, "terminal").split())
    assert text.count("the built-in example") == text.count("`nsa-doctor init` looks for yours here") == count
    assert render_as(report, "json").count("built-in") == 0


def test_every_format_has_a_golden_file() -> None:
    assert set(FORMATS) - {"html"} == set(GOLDEN)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("report.json", "json"),
        ("REPORT.JSON", "json"),
        ("a.sarif", "sarif"),
        ("a.sarif.json", "sarif"),
        ("junit.xml", "junit"),
        ("a.md", "md"),
        ("a.txt", "terminal"),
        ("a.pdf", None),
        ("json", None),
    ],
)
def test_a_files_name_says_its_format(name: str, form: str | None) -> None:
    assert format_of(Path("folder.sarif") / name) == form


@hostile
def test_json_gives_hostile_text_back(name: str) -> None:
    report, _ = both(name)
    text = render_as(report, "json")
    assert render_as(parse_report(text), "json") == text
    shown = json.loads(text)["results"][1]["findings"][0]["message"]
    assert shown == HOSTILE[name].encode(errors="replace").decode()


@hostile
def test_a_terminal_obeys_no_hostile_text(name: str) -> None:
    for character in render_as(both(name, examined)[0], "terminal"):
        assert character == "\n" or character.isprintable()


# JUnit


@hostile
def test_hostile_text_stays_in_its_place_in_junit(name: str, junit_schema: xmlschema.XMLSchema) -> None:
    report, harmless = both(name)
    text = render_as(report, "junit")
    junit_schema.validate(text)
    root = ElementTree.fromstring(text)
    assert [each.tag for each in root.iter()] == [
        each.tag for each in ElementTree.fromstring(render_as(harmless, "junit")).iter()
    ]
    failure = root.find(".//failure")
    assert failure is not None
    assert escaped(HOSTILE[name])[:1000] in failure.attrib["message"]


@pytest.mark.parametrize("make", [examined, ruled])
def test_junit_counts_what_it_holds(make: Callable[[], Report]) -> None:
    root = ElementTree.fromstring(render_as(make(), "junit"))
    for element in (root, *root.findall("testsuite")):
        for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            assert element.attrib[attribute] == str(len(element.findall(f".//{tag}")))


def test_junit_says_how_each_check_ended() -> None:
    root = ElementTree.fromstring(render_as(examined(), "junit"))
    ends = {case.attrib["name"].split()[0]: [child.tag for child in case] for case in root.iter("testcase")}
    assert ends["ENV102"] == []
    assert ends["FWD201"] == ["failure"]
    assert ends["HNG101"] == ends["DEC101"] == ["error"]
    assert ends["GRD101"] == ends["GAT101"] == ["skipped"]
    assert ends["decision"] == ["failure"]


def test_junit_skips_what_a_gate_accepts_and_shows_its_limits() -> None:
    root = ElementTree.fromstring(render_as(ruled(), "junit"))
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    accepted = cases["PRF401 slower-than-its-floor"].find("skipped")
    assert accepted is not None
    assert accepted.attrib["message"] == "accepted: a CPU | is slow"
    limits = [[child.tag for child in case] for case in root.findall("testsuite[@name='limits']/testcase")]
    assert limits == [["failure"], [], ["error"], ["skipped"]]


def test_what_is_unknown_is_not_green_in_junit() -> None:
    empty = Report(command="run", subject={"name": "x"}, options={}, environment={}, seconds=float("nan"))
    case = ElementTree.fromstring(render_as(empty, "junit")).find(".//testcase[@name='decision']/error")
    assert case is not None
    assert case.attrib["type"] == "UNKNOWN"


# SARIF


def shape(value: Any) -> Any:
    """Keys and lengths, without the texts; the place of a file may be relative or not, and evidence is free."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key not in ("artifactLocation", "evidence")}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


@hostile
def test_hostile_text_stays_in_its_place_in_sarif(name: str, sarif_schema: Any) -> None:
    report, harmless = both(name)
    log = json.loads(render_as(report, "sarif"))
    sarif_schema.validate(log)
    assert shape(log) == shape(json.loads(render_as(harmless, "sarif")))
    for result in log["runs"][0]["results"]:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"(file:///|(?![\w+.-]*:))(?:[\w.~!$&'()*+,;=:@/-]|%[0-9A-F]{2})+", uri, re.ASCII)
        text = result["message"]["text"]
        assert not re.search(r"(?<!\\)\[[^\[\]]*(?<!\\)\]\(", text)
        assert not re.search(r"(?<!\{)(?:\{\{)*\{(?!\{)", text)


@pytest.mark.parametrize("make", [examined, ruled])
def test_sarif_is_valid_and_every_result_has_a_rule_and_a_line(make: Callable[[], Report], sarif_schema: Any) -> None:
    log = json.loads(render_as(make(), "sarif"))
    sarif_schema.validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    findings = [finding for _, finding in ordered_findings(make())]
    assert len(run["results"]) == len(make().findings) == len(findings)
    for result, found in zip(run["results"], findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == found.code
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == found.where.line or 1
        assert result["partialFingerprints"] == {"nsaDoctorFinding/v1": found.fingerprint}
    assert run["invocations"][0]["exitCode"] == 1


def places(report: Report) -> list[dict[str, Any]]:
    results = json.loads(render_as(report, "sarif"))["runs"][0]["results"]
    return [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results]


def test_sarif_places_files_below_the_repository() -> None:
    below, _, odd, _, subject, _ = places(examined())
    assert below == {"uri": "my_pkg/attn.py", "uriBaseId": "SRCROOT"}
    assert odd["uri"] == "my_pkg/we%20ird,na:me%25.py"
    assert subject == {"uri": "my_pkg/attn.py", "uriBaseId": "SRCROOT"}  # the file that defines the subject


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("/usr/lib/x y.py", "file:///usr/lib/x%20y.py"),
        (f"{REPOSITORY}/../secret.py", "file:///home/me/repo/../secret.py"),
        (f"{REPOSITORY}2/a.py", "file:///home/me/repo2/a.py"),
        ("C:\\code\\a.py", "file:///C:/code/a.py"),
        ("a:b.py", "a%3Ab.py"),
        ("../a.py", "../a.py"),
        ("javascript:alert(1)", "javascript%3Aalert(1)"),
        ("<string>", "my_pkg.attn%3Amake"),
        ("", "my_pkg.attn%3Amake"),
    ],
)
def test_sarif_places_other_files_where_they_are(file: str, uri: str) -> None:
    report = examined()
    where = place()
    found = finding("FWD201", "x", type(where)(file=file, line=3))
    result = type(report.results[0])(code="FWD201", name="x", verdict=report.results[2].verdict, findings=(found,))
    alone = type(report)(
        command="run",
        subject={"name": "my_pkg.attn:make"},
        options={},
        environment={"repository": REPOSITORY},
        results=(result,),
    )
    assert places(alone)[0]["uri"] == uri
    assert ("uriBaseId" in places(alone)[0]) == (file in ("a:b.py", "javascript:alert(1)"))


def test_sarif_tells_accepted_and_known_findings() -> None:
    results = {each["ruleId"]: each for each in json.loads(render_as(ruled(), "sarif"))["runs"][0]["results"]}
    assert results["PRF401"]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "a CPU | is slow"}
    ]
    assert results["PRF401"]["baselineState"] == "unchanged"
    assert results["HNG101"]["baselineState"] == "new"
    assert "suppressions" not in results["HNG101"]


# GitHub's workflow commands


def commands(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    for line in text.splitlines():
        found = COMMAND.fullmatch(line)
        assert found is not None, line
        given = dict(part.split("=", 1) for part in found["properties"].split(","))
        unquoted = {key: value.replace("%2C", ",").replace("%3A", ":") for key, value in given.items()}
        yield found["level"], {key: undone(value) for key, value in unquoted.items()}, undone(found["message"])


def undone(text: str) -> str:
    return text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


@hostile
def test_hostile_text_gives_no_command_of_its_own(name: str) -> None:
    report, harmless = both(name)
    found, expected = (list(commands(render_as(each, "github"))) for each in (report, harmless))
    assert [level for level, _, _ in found] == [level for level, _, _ in expected]
    for _, given, _ in found:
        assert set(given) <= {"file", "line", "title"}
    assert found[1][2].startswith(escaped(HOSTILE[name].splitlines()[0])[:100])


def test_github_shows_the_gravest_first_and_never_more_than_ten() -> None:
    report = examined()
    many = type(report)(**{**vars(report), "results": report.results * 5})
    found = list(commands(render_as(many, "github")))
    errors = [(given, message) for level, given, message in found if level == "error"]
    assert len(errors) == 10
    assert errors[0][0]["title"] == "nsa-doctor: NO-GO"
    assert errors[0][1].endswith("; 21 more findings are in the report")
    assert [given["title"].split()[0] for given, _ in errors[1:]] == ["HNG101"] * 5 + ["GRD401"] * 4
    assert errors[1][0] == {"file": "my_pkg/attn.py", "line": "88", "title": "HNG101 call-does-not-return"}


def test_github_says_what_was_not_checked_and_what_was_accepted() -> None:
    found = [(level, given["title"]) for level, given, _ in commands(render_as(ruled(), "github"))]
    assert ("warning", "not checked: GRD101") in found
    assert ("notice", "PRF401 slower-than-its-floor") in found
    assert ("error", "PRF401 slower-than-its-floor") not in found
