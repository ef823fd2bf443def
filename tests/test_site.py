"""The sources of the site: a page for every check, links that lead somewhere, and a picture that can be drawn."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
import yaml

from nsa_doctor.core import registry
from nsa_doctor.core.documentation import page_of
from tests.arrows import ROOMS

ROOT = Path(__file__).parents[1]
CONFIGURATION = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sources() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_sources", ROOT / "docs" / "site_sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(sources: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    sources.write_site(folder)
    return folder


def test_every_check_has_a_page_with_what_its_manual_says(site: Path) -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (site / "checks").glob("*.md")}
    assert set(pages) == {"index", *registry.manuals()}
    for code, manual in registry.manuals().items():
        assert pages[code].startswith(f"# {code} {manual.name}\n")
        assert "## Why it matters" in pages[code]
        assert "## How to mend it" in pages[code]
        assert "## Faulty" in pages[code]
        assert "## Mended" in pages[code]
        assert f"]({code}.md)" in pages["index"]


def test_the_page_of_a_check_shows_what_it_says_and_since_when_it_is_there(site: Path, sources: ModuleType) -> None:
    for code, message in json.loads(sources.MESSAGES.read_text(encoding="utf-8")).items():
        page = (site / "checks" / f"{code}.md").read_text(encoding="utf-8")
        said = page.partition("## What it says\n")[2].partition("```\n")[2].partition("\n```")[0]
        assert " ".join(said.split()) == " ".join(f"{code} {message}".split())
        assert f"| in nsa-doctor since | {registry.entries()[code].since} |" in page


def test_every_link_between_pages_leads_to_one(site: Path) -> None:
    for path in site.rglob("*.md"):
        text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"))
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        assert [link for link in links if not (path.parent / link).exists()] == [], path.name


def test_a_code_in_a_page_leads_to_its_check_and_code_stays_code(sources: ModuleType) -> None:
    text = "FWD201 and `FWD202`, [FWD203](x.md), XYZ999.\n```\nFWD201\n```\n"
    link = "[FWD201](checks/FWD201.md)"
    assert sources.linked(text) == text.replace("FWD201", link, 1)


def test_codes_in_the_page_of_a_check_lead_to_the_others(site: Path) -> None:
    text = (site / "checks" / "FWD201.md").read_text(encoding="utf-8")
    assert "([FWD217](FWD217.md))" in text
    assert "[FWD201]" not in text


def test_a_link_that_leads_nowhere_is_an_error(sources: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.md is linked from docs"):
        sources.turned("[x](nowhere.md)", Path("docs"))


def test_the_examples_hold_every_cell_of_the_notebook(site: Path) -> None:
    page = (site / "examples.md").read_text(encoding="utf-8")
    shown = page.partition("\n## examine.ipynb\n")[2].partition("\n## ")[0]
    notebook = json.loads((ROOT / "examples" / "examine.ipynb").read_text(encoding="utf-8"))
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert re.findall(r"(?s)```python\n(.*?)\n```", shown) == codes
    assert "**A module in a notebook**" in shown


def test_the_menu_names_every_page_and_no_other(site: Path) -> None:
    def pages(entries: Any) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        return [page for each in entries for page in pages(each if isinstance(entries, list) else entries[each])]

    written = {str(path.relative_to(site)) for path in site.rglob("*.md")}
    assert set(pages(CONFIGURATION["nav"])) == {
        page for page in written if not re.fullmatch(r"checks/[A-Z]+\d+.md", page)
    }


def test_the_reference_holds_what_the_packages_export(site: Path) -> None:
    import nsa
    import nsa_doctor

    in_transformers = {"NSAForCausalLM", "NSAConfig", "register", "from_checkpoint"}
    named = re.findall(r"^::: (\S+)\.(\w+)$", (site / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    of_library = [name for module, name in named if module.startswith("nsa.hf.")]
    assert set(of_library) >= in_transformers
    others = [each for each in named if not each[0].startswith("nsa.hf.")]
    assert {name for _, name in others} == {*nsa.__all__, *nsa_doctor.__all__, "run_check"}
    for module, name in others:
        assert hasattr(importlib.import_module(module), name)


def test_the_reference_says_each_field_of_a_configuration_and_each_value_of_a_verdict(site: Path) -> None:
    from nsa import ModelConfig, NSAConfig
    from nsa_doctor import Decision

    parts = (site / "api.md").read_text(encoding="utf-8").split("\n::: ")
    of = {part.split("\n", 1)[0]: part for part in parts}
    for config in (NSAConfig, ModelConfig):
        assert re.findall(r"(?m)^\| `(\w+)` \| `", of[f"nsa.config.{config.__name__}"]) == list(config.model_fields)
    assert re.findall(r"`'(.*)'`", of["nsa_doctor.core.finding.Decision"]) == [each.value for each in Decision]


def test_the_picture_shows_every_room_above_those_it_imports_from(site: Path, sources: ModuleType) -> None:
    drawn = [each.text for each in ElementTree.parse(site / "architecture.svg").iter() if each.tag.endswith("text")]
    assert sorted(map(str, drawn)) == sorted({room.split(".")[0] for room in ROOMS} - {""})
    level = {name: number for number, row in enumerate(sources.layers()) for name in row}
    for room, targets in ROOMS.items():
        above = room.split(".")[0]
        below = {each.split(".")[0] for each in targets} - {above}
        assert not above or all(level[above] < level[each] for each in below)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, without a warning."""
    for name in ("material", "mkdocs", "mkdocstrings"):
        pytest.importorskip(name, reason=f"{name} comes with the extra `docs`")
    folder = tmp_path_factory.mktemp("built")
    words = ("-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "docs" / "mkdocs.yml"), "-d", str(folder))
    subprocess.run(
        [sys.executable, "docs/site_sources.py", "build/docs"], cwd=ROOT, check=True, env={"PYTHONPATH": "."}
    )
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, timeout=110)
    return folder


@pytest.mark.full
def test_every_check_has_a_page_where_findings_lead_to(built: Path) -> None:
    assert [code for code in registry.entries() if not (built / page_of(code)).is_file()] == []


@pytest.mark.full
def test_everything_that_a_built_page_leads_to_or_loads_is_there(built: Path) -> None:
    pages = {path: Links(path) for path in sorted(built.rglob("*.html"))}
    assert len(pages) > len(registry.entries())
    assert sum(len(page.leads) for page in pages.values()) > len(pages)
    assert [wrong for path, page in pages.items() for wrong in missing_targets(path, page, built, pages)] == []


def test_a_missing_page_and_a_missing_anchor_are_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "there.html").write_text('<p id="x">')
    path = tmp_path / "a.html"
    path.write_text(
        '<a href="b/there.html#x"></a><a href="b/there.html#y"></a><a href="#up"></a><a href="/b/there.html"></a>'
        '<img src="no.png"><a href="https://a.example/b"></a><a href="?q"></a><a name="up"></a><a href="b/"></a>'
    )
    pages = {each: Links(each) for each in tmp_path.rglob("*.html")}
    wrong = list(missing_targets(path, pages[path], tmp_path, pages))
    assert wrong == ["a.html: b/there.html#y", "a.html: no.png", "a.html: b/"]


class Links(HTMLParser):
    """What a page leads to or loads, and the anchors in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.anchors = {"", "__top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.leads.append(value)
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")


def missing_targets(path: Path, page: Links, site: Path, pages: Mapping[Path, Links]) -> Iterator[str]:
    """Each link of a page to a file or an anchor that the site lacks; other sites are not asked."""
    for lead in page.leads:
        parts = urlsplit(lead)
        if parts.scheme or parts.netloc:
            continue
        home = site if parts.path.startswith("/") else path.parent
        target = (home / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        anchors = pages[target].anchors if target in pages else {""}
        if not target.is_file() or unquote(parts.fragment) not in anchors:
            yield f"{path.relative_to(site)}: {lead}"
