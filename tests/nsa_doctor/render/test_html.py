"""The page of a report: what stands on it and in which order, and that no text on it does anything."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.own_score import OwnScore, Rate, own_score
from nsa_doctor.core.share import Share
from nsa_doctor.core.text import escaped
from nsa_doctor.render import html
from nsa_doctor.render.formats import format_of, render_as
from nsa_doctor.render.html import render
from nsa_doctor.render.pictures.growth import growth_picture
from tests.nsa_doctor.render.page_parser import Element, read_page
from tests.nsa_doctor.render.pages import BARE, PASSED, everything, gated, swept, timed, trained
from tests.nsa_doctor.reports import HOSTILE, MANUALS, examined, filled, ruled

LOADS = {"script", "iframe", "object", "embed", "img", "base", "form", "audio", "video", "source", "frame", "portal"}
REPORTS: dict[str, Callable[[], Report]] = {
    "bare": lambda: BARE,
    "passed": lambda: PASSED,
    "examined": examined,
    "ruled": ruled,
    "swept": swept,
    "timed": timed,
    "trained": trained,
    "gated": gated,
    "everything": everything,
}
SCORE = OwnScore("0123456", "the corpus", Rate(9, 10, 59.6, 98.2), Rate(0, 10, 0.0, 27.8))
of_each = pytest.mark.parametrize("name", REPORTS)
hostile = pytest.mark.parametrize("name", HOSTILE)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden files change neither with a check's manual nor with the doctor's score."""
    monkeypatch.setattr(registry, "manuals", lambda: MANUALS)
    monkeypatch.setattr(html, "own_score", lambda: SCORE)


def page_of(report: Report) -> Element:
    return read_page(render(report, excerpts=False))


@cache
def page_named(name: str) -> Element:
    return page_of(REPORTS[name]())


def words_alone() -> Report:
    """Without pictures, which take a second to draw."""
    return replace(ruled(), measurements=())


def mixed(_: str) -> str:
    """Every hostile text but the long one."""
    return " ".join(text for name, text in HOSTILE.items() if name != "long")


def bones(page: str) -> str:
    """Without the style, and with pictures by their names: what a person reads in a difference."""
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)
    return re.sub(r'<svg class="picture[^>]*aria-label="([^"]*)"[^>]*>.*?</svg>', r"<svg>\1</svg>", page)


@pytest.mark.parametrize("name", ["bare", "examined", "ruled", "gated"])
def test_a_page_looks_like_its_golden_file(name: str, golden: Callable[[str, str], None], fixed: None) -> None:
    golden(f"{name}.html", bones(render(REPORTS[name](), excerpts=False)))


def test_a_picture_looks_like_its_golden_file(golden: Callable[[str, str], None]) -> None:
    picture = growth_picture(timed())
    assert picture is not None
    golden("picture.svg.html", "\n".join(panel.svg.replace("><", ">\n<") for panel in picture.panels) + "\n")


def test_a_page_is_the_same_every_time() -> None:
    report = replace(timed(), measurements=swept().measurements[:4])
    assert render(report) == render(report)


def test_html_is_a_format_and_its_files_are_known_by_their_names(tmp_path) -> None:
    assert format_of(tmp_path / "report.html") == "html"
    assert render_as(BARE, "html").startswith("<!doctype html>")


# Nothing loads, nothing runs


@of_each
def test_nothing_on_a_page_loads_or_runs(name: str) -> None:
    check_inert(page_named(name))


@hostile
def test_hostile_text_stays_in_its_place(name: str) -> None:
    check_in_place(words_alone, lambda _: HOSTILE[name])


def test_hostile_text_stays_in_its_place_in_pictures() -> None:
    check_in_place(everything, mixed)


@hostile
def test_hostile_text_is_shown_as_it_is(name: str) -> None:
    page = page_of(filled(words_alone(), lambda _: HOSTILE[name]))
    shown = page.by_id("finding-1").one("p", "message").text.strip("\u2068\u2069")
    raw = escaped(HOSTILE[name])
    assert shown == raw if len(raw) < 1000 else shown.startswith(raw[:1000])


def check_in_place(make: Callable[[], Report], fill: Callable[[str], str]) -> None:
    text = render(filled(make(), fill), excerpts=False)
    text.encode("utf-8")
    assert not {sign for sign in text if not sign.isprintable()} - {"\n", "\u2068", "\u2069"}
    assert text.count("\u2068") == text.count("\u2069")
    assert "could not be drawn" not in text
    page = read_page(text)
    check_inert(page)
    check_accessible(page)
    known = {each.tag for each in page_of(filled(make(), lambda _: "harmless")).all()}
    assert {each.tag for each in page.all()} <= known | {"wbr", "p"}


def check_inert(page: Element) -> None:
    for each in page.all():
        assert each.tag not in LOADS
        for name, value in each.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "action", "formaction", "xlink:href", "background", "ping", "poster")
            if name == "href":
                assert value.startswith("#") or (each.tag == "link" and value.startswith("data:image/svg+xml,"))
            if name == "style":
                assert re.fullmatch(r"[a-z-]+: ?[^:]*(; ?[a-z-]+: ?[^:]*)*;?", value), value
                assert not re.search(r"url\((?!#)|expression|@import", value)
    assert "url(" not in page.one("style").text
    assert "@import" not in page.one("style").text
    policy = next(each for each in page.all("meta") if each.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script" not in policy.attributes["content"]


# Who reads it without seeing it


@of_each
def test_a_page_can_be_read_without_being_seen(name: str) -> None:
    check_accessible(page_named(name))


def check_accessible(page: Element) -> None:
    document = page.one("html")
    assert document.attributes["lang"] == "en"
    assert document.one("head").one("title").text.strip()
    for landmark in ("main", "nav", "h1"):
        document.one(landmark)
    ids = [each.attributes["id"] for each in page.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    for each in page.all():
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(each.attributes.get(name, "").split()) <= set(ids)
        if each.attributes.get("href", "").startswith("#"):
            assert each.attributes["href"][1:] in ids
    levels = [int(each.tag[1]) for each in page.all() if re.fullmatch("h[1-6]", each.tag)]
    assert levels[0] == 1
    assert all(deeper <= shallower + 1 for shallower, deeper in pairwise(levels))
    for fold in page.all("details"):
        assert fold.children[0].tag == "summary"
        assert fold.children[0].text.strip()
        assert len(fold.children) > 1
    for picture in page.all("svg", "picture"):
        assert picture.attributes["role"] == "img"
        assert picture.attributes["aria-label"].strip()
        assert next(picture.all("desc")).text.strip()
    for table in page.all("table"):
        assert all("scope" in cell.attributes for cell in table.all("th"))


# What stands where


def test_a_page_reads_in_the_order_of_a_decision() -> None:
    page = page_named("everything")
    known = [section.attributes["id"] for section in page.all("section")]
    assert known == [
        "why", "findings", "subject", "missing", "notes", "sweep", "gates", "growth", "run", "gate", "mutants",
        "checks", "environment", "score", "markdown", "again",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("report", "word", "kind"),
    [(PASSED, "GO", "go"), (examined(), "NO-GO", "no-go"), (BARE, "UNKNOWN", "unknown")],
    ids=["go", "no-go", "unknown"],
)
def test_the_verdict_comes_first_and_in_words(report: Report, word: str, kind: str) -> None:
    page = page_of(report)
    assert next(page.all("h1")).one("span", "word").text == word
    assert page.one("html").classes == [kind]
    assert page.one("head").one("title").text.startswith(f"{word}: ")


def test_a_report_with_nothing_in_it_says_so() -> None:
    page = page_of(BARE)
    assert not list(page.all("svg", "picture"))
    assert page.by_id("findings").one("h2").text == "No findings"
    assert "nothing was examined" in page.by_id("why").text
    assert "No check was run" in page.by_id("checks").text


def test_a_card_tells_what_where_and_what_to_do(fixed: None) -> None:
    card = page_of(examined()).by_id("finding-4")
    for part in (
        "FWD201",
        "future-changes-output",
        "token 40 changes when tokens 64 to 127 do, by 0.31, at S=128",
        "layers.0.attn (SparseAttention)",
        "my_pkg/attn.py:52",
        "in forward",
        "unchanged at S=64",
        "It costs weeks.",
        "Mend it.",
        "nsa-doctor run --select FWD201 --subject my_pkg.attn:make --seed 0",
        examined().findings[2].fingerprint,
        "FWD202",
        "has gradientyes",
        "boundNaN",
    ):
        assert part in card.text
    assert "/home/me/repo" not in card.text


def test_an_example_of_a_manual_is_folded_below_its_advice_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    example = "# faulty\nif a < b:\n    c = 1"
    monkeypatch.setattr(registry, "manuals", lambda: {"FWD201": replace(MANUALS["FWD201"], example=example)})
    card = page_of(examined()).by_id("finding-4")
    (fold,) = (each for each in card.all("details") if each.one("summary").text == "An example")
    assert fold.one("pre").text == example


def test_a_traceback_of_the_subject_is_folded_below_its_findings() -> None:
    (fold,) = (each for each in page_named("examined").by_id("findings").children if each.tag == "details")
    assert fold.one("summary").text == "Traceback at S=18 in bfloat16 (train)"
    assert fold.one("pre").text == "Traceback\n <b>"


def test_reasons_lead_to_their_cards() -> None:
    page = page_of(examined())
    assert [link.attributes["href"] for link in page.by_id("why").all("a")] == [f"#finding-{n}" for n in range(1, 7)]


def test_an_accepted_finding_comes_last_and_says_why_it_may_stay() -> None:
    cards = list(page_of(ruled()).by_id("findings").all("article"))
    assert ["known" in card.classes for card in cards] == [False] * 5 + [True]
    assert "a CPU | is slow" in cards[-1].text
    assert cards[-1].one("p", "badge").text == "accepted"


def test_what_was_not_checked_stands_with_its_reason() -> None:
    missing = page_of(ruled()).by_id("missing").text
    assert re.search(r"GRD101\s+not checked: means nothing while NAN101 fails", missing)
    assert re.search(r"DEC101\s+crashed: KeyError: '\|x\|'", missing)
    assert re.search(r"1 checks do not apply.*GAT101\s+it has no gate", missing, re.DOTALL)


def test_a_check_that_the_gate_asked_for_and_nobody_ran_is_not_forgotten() -> None:
    report = ruled()
    assert report.verdict is not None
    absent = replace(report.verdict.required[0], code="CKP101", verdict="absent", reason="no --checkpoint was given")
    page = page_of(replace(report, verdict=replace(report.verdict, required=(absent,))))
    assert re.search(r"CKP101\s+not run: no --checkpoint was given", page.by_id("missing").text)


def test_checks_and_limits_are_counted_below_the_verdict() -> None:
    lines = [each.text for each in page_named("ruled").one("ul", "tally").all("li")]
    assert lines == [
        "6 failed",
        "1 timed out",
        "1 crashed",
        "1 not checked",
        "1 passed",
        "1 not applicable",
        "1 limit broken",
        "1 limit not measured",
        "1 limit kept",
    ]


def test_the_bar_leaves_out_what_does_not_apply_and_words_say_how_many_failed() -> None:
    page = page_named("ruled")
    shares = {each.classes[0]: each.attributes["style"] for each in page.one("div", "bar").all("i")}
    assert shares["pass"] == "flex-grow: 1"
    assert "idle" not in shares
    assert "7 of 8 checks that ran failed." in page.by_id("verdict").text


def test_the_page_holds_the_markdown_to_copy_it() -> None:
    folded = page_of(ruled()).by_id("markdown").one("details")
    assert folded.one("summary").text == "Copy as Markdown"
    assert folded.one("pre").text == render_as(ruled(), "md").rstrip("\n")


def test_every_check_stands_with_its_end() -> None:
    page = page_of(ruled())
    rows = [row for table in page.by_id("checks").all("table") for row in table.all("tr")][:]
    ends = {row.one("code").text: row.one("span", "badge").text for row in rows if list(row.all("code"))}
    assert {code: ends[code] for code in ("ENV102", "HNG101", "FWD202", "GRD101", "GAT101", "DEC101")} == {
        "ENV102": "passed",
        "HNG101": "timed out",
        "FWD202": "failed",
        "GRD101": "not checked",
        "GAT101": "not applicable",
        "DEC101": "crashed",
    }
    assert len(ends) == len(ruled().results)


def test_limits_stand_with_what_was_measured() -> None:
    gate = page_of(ruled()).by_id("gate")
    rows = [[cell.text for cell in row.children] for row in next(gate.all("tbody")).all("tr")]
    assert rows[0] == ["speed", "6 tokens/s", "at least 1000 tokens/s", "broken", "the bill"]
    assert rows[2][1] == "not measured"
    assert rows[3][2] == "at least 9000 tokens/s on H200"
    assert "old.json: 1 new, 1 fixed, 1 unchanged." in gate.text


def test_the_command_that_asks_again_stands_last() -> None:
    again = list(page_of(ruled()).one("main").all("section"))[-1]
    assert again.one("pre").text == "nsa-doctor go-no-go --policy production --subject my_pkg.attn:make"


def test_what_does_not_fit_is_counted() -> None:
    findings = tuple(Finding(code="FWD101", message=f"finding {number}") for number in range(300))
    result = Result(code="FWD101", name="raises", verdict=Verdict.FAIL, findings=findings)
    page = page_of(replace(BARE, results=(result,)))
    assert len(list(page.all("article"))) == 200
    assert "and 100 more in report.json" in page.by_id("findings").text
    assert page.by_id("findings").one("h2").text == "300 findings"


def test_an_interrupted_examination_says_so_first() -> None:
    first = next(page_of(replace(PASSED, interrupted=True)).by_id("why").all("li"))
    assert "interrupted" in first.text


# The doctor's own figures


def test_the_doctors_own_score_agrees_with_its_intervals() -> None:
    score = own_score()
    for rate in (score.recall, score.false_alarms):
        low, high = Share(rate.hits, rate.of).interval
        assert (rate.low, rate.high) == (pytest.approx(100 * low, abs=0.1), pytest.approx(100 * high, abs=0.1))
    assert score.corpus.startswith(f"{score.recall.of} planted bugs")
    assert f"{score.false_alarms.of} healthy" in score.corpus


def test_the_doctors_own_score_is_shown_with_its_corpus(fixed: None) -> None:
    text = page_of(BARE).by_id("score").text
    assert "9 of 10 planted bugs found90.0 %, 95 % interval 59.6 to 98.2 %" in text
    assert "0 of 10 healthy subjects accused0.0 %, 95 % interval 0.0 to 27.8 %" in text
    assert "the corpus" in text
