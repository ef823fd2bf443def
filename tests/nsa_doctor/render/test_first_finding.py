"""What a user should mend first stands first, whatever the format and however the results came in."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from nsa_doctor.core.finding import Report, Verdict
from nsa_doctor.core.registry import priorities
from nsa_doctor.render.formats import render_as
from nsa_doctor.render.summary import conclusion, grouped
from tests.nsa_doctor.reports import examined, ruled

CODE = r"([A-Z]{3}\d{3})"


def in_text(text: str) -> list[str]:
    return re.findall(rf"^{CODE} ", text, re.MULTILINE)


def in_page(page: str) -> list[str]:
    return re.findall(rf'<h3 id="finding-\d+-title"><code class="code">{CODE}</code>', page)


def in_markdown(text: str) -> list[str]:
    return re.findall(rf"^\| `{CODE}` \|", text, re.MULTILINE)


def in_sarif(text: str) -> list[str]:
    return [each["ruleId"] for each in json.loads(text)["runs"][0]["results"]]


def in_github(text: str) -> list[str]:
    return re.findall(rf"^::(?:error|notice) .*title={CODE} ", text, re.MULTILINE)


def in_junit(text: str) -> list[str]:
    cases = ElementTree.fromstring(text).iter("testcase")
    failed = [str(case.get("name")) for case in cases if {each.tag for each in case} & {"failure", "error"}]
    return [name[:6] for name in failed if re.match(CODE, name)]


READERS: dict[str, Callable[[str], list[str]]] = {
    "terminal": in_text,
    "html": in_page,
    "md": in_markdown,
    "sarif": in_sarif,
    "github": in_github,
    "junit": in_junit,
}


def shuffled(report: Report, seed: int) -> Report:
    results = list(report.results)
    random.Random(seed).shuffle(results)
    return replace(report, results=tuple(results))


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [examined, ruled])
def test_the_first_finding_is_what_to_mend_first(form: str, seed: int, make: Callable[[], Report]) -> None:
    report = shuffled(make(), seed)
    accepted = {each.fingerprint for each in report.verdict.accepted} if report.verdict else set()
    open_ones = [finding.code for finding in report.findings if finding.fingerprint not in accepted]
    first = READERS[form](render_as(report, form))[0]
    priority = priorities(open_ones)
    assert first in open_ones
    assert priority[first] == min(priority.values())


def test_fewer_findings_than_failed_checks_are_explained() -> None:
    report = examined()
    failed = sum(result.verdict in (Verdict.FAIL, Verdict.TIMEOUT) for result in report.results)
    assert failed > report.num_findings
    assert f"6 findings ({failed} checks failed)" in conclusion(report)
    assert grouped(report) in render_as(report, "html")


def test_one_cause_of_several_failed_checks_names_it() -> None:
    failed = [replace(result, findings=(), further=()) for result in examined().results]
    found = next(result for result in examined().results if result.findings)
    (one,) = found.findings[:1]
    failed[0] = replace(found, findings=(one,), further=())
    assert "1 finding names the likely cause: run again once it is mended." in grouped(
        replace(examined(), results=tuple(failed))
    )


def test_as_many_findings_as_failed_checks_need_no_word() -> None:
    report = examined()
    own = tuple(result for result in report.results if result.findings)
    assert grouped(replace(report, results=own)) == ""


def test_the_page_tells_the_findings_before_the_subjects_table() -> None:
    page = render_as(examined(), "html")
    assert page.index('id="finding-1"') < page.index('id="subject"')


def test_the_hashes_of_a_verdict_say_what_they_are_of() -> None:
    text = render_as(ruled(), "terminal")
    assert "file sha256 " in text
    assert re.search(r"^config +hash ", text, re.MULTILINE)
    assert "Hash of configuration" in render_as(ruled(), "html")
