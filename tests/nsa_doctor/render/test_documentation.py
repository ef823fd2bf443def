"""A finding leads to the page of its check where the site has an address, and nowhere while it has none."""

import json
from email.message import Message
from pathlib import Path

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core import documentation, registry
from nsa_doctor.render import terminal
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import parse_report
from nsa_doctor.render.summary import ordered_findings
from tests.nsa_doctor.render.page_parser import read_page
from tests.nsa_doctor.reports import examined, ruled

SITE = "https://docs.example/doctor"
PAGE = f"{SITE}/checks/FWD201.html"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "site_address", lambda: SITE)


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_leads_to_a_page_while_the_site_has_no_address(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "site_address", lambda: "")
    assert "checks/" not in render_as(ruled(), form)


@pytest.mark.usefixtures("site")
def test_a_rule_of_sarif_has_the_address_and_a_help_of_its_manual() -> None:
    rules = json.loads(render_as(examined(), "sarif"))["runs"][0]["tool"]["driver"]["rules"]
    (rule,) = (each for each in rules if each["id"] == "FWD201")
    manual = registry.manual("FWD201")
    assert rule["helpUri"] == PAGE
    assert f"Fix: {manual.fix}" in rule["help"]["text"]
    assert rule["help"]["markdown"].endswith(f"```python\n{manual.example}\n```")


@pytest.mark.usefixtures("site")
def test_a_card_of_the_page_has_a_link() -> None:
    page = read_page(render_as(examined(), "html"))
    leads = {each.text: each.attributes["href"] for each in page.all("a") if SITE in each.attributes["href"]}
    assert leads["The page of FWD201"] == PAGE
    assert len(leads) == len({finding.code for _, finding in ordered_findings(examined())})


@pytest.mark.usefixtures("site")
def test_a_code_in_markdown_leads_to_its_page() -> None:
    text = render_as(examined(), "md")
    assert f"| [`FWD201`]({PAGE}) |" in text
    assert f"- **Page**: [`FWD201`]({PAGE})" in text


@pytest.mark.usefixtures("site")
def test_a_code_in_a_terminal_leads_to_its_page_and_a_file_holds_none() -> None:
    coloured = terminal.render(examined(), colour=True, width=200)
    start = coloured.index(f";{PAGE}\x1b\\")
    shown = coloured[start:].split("\x1b\\")[1]
    assert "FWD201" in shown.removesuffix("\x1b]8;;")
    assert SITE not in terminal.render(examined(), width=200)


@pytest.mark.usefixtures("site")
def test_a_finding_in_json_has_the_address_and_is_read_back() -> None:
    text = render_as(examined(), "json")
    findings = [each for result in json.loads(text)["results"] for each in result["findings"]]
    assert {each["help"] for each in findings if each["code"] == "FWD201"} == {PAGE}
    assert render_as(parse_report(text), "json") == text


@pytest.mark.usefixtures("site")
def test_explain_says_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["explain", "FWD201"]) == 0
    assert capsys.readouterr().out.endswith(f"\n\nPage: {PAGE}\n")


@pytest.mark.usefixtures("site")
def test_a_code_without_a_page_has_no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "xyz101_ill.py").write_text(
        '"""XYZ101 ill\n\nDetects: a.\nMatters: b.\nFix: c.\n"""\nCHECK = Check(doc=__doc__, run=None, planted=None)\n'
    )
    files = [*registry._files(), ("others.xyz101_ill", tmp_path / "xyz101_ill.py")]
    monkeypatch.setattr(registry, "_files", lambda: iter(files))
    assert "XYZ101" in registry.entries()
    assert [documentation.address_of(code) for code in ("XYZ101", "FWD999", "../x")] == ["", "", ""]


@pytest.mark.parametrize(
    ("urls", "address"),
    [
        (["Source, https://a.example", f"Documentation, {SITE}/"], SITE),
        (["Source, https://a.example"], ""),
        ([], ""),
    ],
)
def test_the_address_is_that_of_the_installed_package(
    urls: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Message()
    for url in urls:
        installed["Project-URL"] = url
    monkeypatch.setattr(documentation, "metadata", lambda _name: installed)
    assert documentation.site_address.__wrapped__() == address
