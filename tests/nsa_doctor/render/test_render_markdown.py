"""Markdown: parsed as GitHub parses it, hostile text is text, and a comment is never too long to post."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from nsa_doctor.core.text import escaped
from nsa_doctor.render.formats import render_as
from nsa_doctor.render.markdown_text import code, fenced, inside_html, prose, text
from tests.nsa_doctor.reports import HOSTILE, examined, filled, ruled

TAG = re.compile(r"</?(?:details|summary|code|b)>")
MOST_IN_A_COMMENT = 65_536
PARSER = MarkdownIt("gfm-like")  # tables, links without brackets, and HTML as it is
assert PARSER.linkify is not None
PARSER.linkify.set({"fuzzy_link": False})  # GitHub makes no link of forward.py
hostile = pytest.mark.parametrize("name", HOSTILE)
anything = st.text(st.characters(), max_size=40) | st.text(r"\`*_[]()<>|~#@&$:!-+=1. aw/" + "\n", max_size=40)


def tokens(markdown: str) -> Iterator[Token]:
    for token in PARSER.parse(markdown):
        yield token
        yield from token.children or ()


def structure(markdown: str) -> list[str]:
    """What a browser is asked to do, in order; a span of code and `<code>` are one thing."""
    found = []
    for token in tokens(markdown):
        if token.type.startswith("html"):
            assert "<" not in TAG.sub("", token.content)
            found += [tag.replace("<code>", "code_inline") for tag in TAG.findall(token.content) if tag != "</code>"]
        elif token.type not in ("text", "inline"):
            found.append(token.type)
    return found


def shown(markdown: str) -> str:
    """What a reader sees of one line."""
    marks = ("text", "text_special", "code_inline")
    found = "".join(token.content for token in tokens(markdown) if token.type in marks)
    inline = "".join(token.content for token in tokens(markdown) if token.type == "html_inline")
    assert TAG.sub("", inline) == ""
    return found.replace("\u200b", "")


@hostile
def test_hostile_text_is_text(name: str) -> None:
    report, harmless = (filled(ruled(), lambda _, fill=fill: fill) for fill in (HOSTILE[name], "harmless"))
    markdown = render_as(report, "md")
    kinds = set(structure(markdown))
    assert kinds == set(structure(render_as(harmless, "md"))) or name in ("long", "only spaces")
    assert not kinds & {"link_open", "image", "hr", "blockquote_open", "code_block", "s_open"}


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if name not in ("long", "only spaces") and "\n" not in HOSTILE[name]]
)
def test_a_row_of_hostile_text_is_one_row(name: str) -> None:
    report, harmless = (filled(ruled(), lambda _, fill=fill: fill) for fill in (HOSTILE[name], "harmless"))
    assert structure(render_as(report, "md")) == structure(render_as(harmless, "md"))


@given(anything)
def test_text_is_shown_as_it_is_wherever_it_stands(raw: str) -> None:
    expected = escaped(raw)[:500].strip()
    for before, after in (("", ""), ("- ", ""), ("| - |\n| --- |\n| ", " |")):
        markdown = f"{before}{text(raw)}{after}"
        assert shown(markdown).removeprefix("-" if after else "").strip() == expected
        assert set(structure(markdown)) <= set(structure(f"{before}harmless{after}"))


@given(anything)
def test_code_is_shown_as_it_is(raw: str) -> None:
    assert shown(f"- {code(raw)}").strip() == escaped(raw).strip()
    assert structure(f"| a |\n| --- |\n| {code(raw)} |")[:3] == ["table_open", "thead_open", "tr_open"]


@given(anything)
def test_a_fence_holds_what_stands_in_it(raw: str) -> None:
    (token,) = PARSER.parse(fenced(raw, "sh"))
    assert token.type == "fence"
    assert token.content.splitlines() == [escaped(line) for line in raw.splitlines()]


@given(anything)
def test_html_holds_what_stands_in_it(raw: str) -> None:
    (token,) = PARSER.parse(f"<details><summary>{inside_html(raw)}</summary></details>")
    assert token.type == "html_block"
    assert TAG.findall(token.content) == ["<details>", "<summary>", "</summary>", "</details>"]
    assert "<" not in TAG.sub("", token.content)


@pytest.mark.parametrize(
    "raw",
    ["@octocat", "a@b.example", "#12", "o/r#12", "GH-12", "https://e.example", "www.e.example", ":boom:", "$x$ $y$"],
)
def test_nothing_is_turned_into_a_link_a_mention_or_a_picture(raw: str) -> None:
    for markdown in (text(raw), inside_html(raw), prose(f"see {raw} there")):
        seen = "".join(token.content for token in PARSER.parseInline(markdown)[0].children or ())
        assert not re.search(r"@\w|#\d|GH-\d|://|www\.|:boom:", seen)
        assert "$" not in markdown


def test_code_in_a_manual_is_code() -> None:
    assert prose("write `a * b` in place of `a *= b`, `nsa_doctor`'s way") == (
        "write `a * b` in place of `a *= b`, `nsa_doctor`'s way"
    )
    assert prose("an odd ` mark") == "an odd \\` mark"


def test_a_comment_is_never_too_long_and_says_what_is_left_out() -> None:
    report = examined()
    many = replace(report, results=report.results * 300)
    markdown = render_as(many, "md")
    assert len(markdown) < MOST_IN_A_COMMENT
    assert re.search(r"The details of 1\d{3} more findings are in the JSON report\.", markdown)
    assert re.search(r"^and 1\d{3} more$", markdown, re.MULTILINE)
    assert "### Not checked" in markdown
    assert len(render_as(filled(ruled(), lambda _: HOSTILE["long"]), "md")) < MOST_IN_A_COMMENT


def test_the_verdict_comes_first_then_findings_then_what_was_not_checked() -> None:
    markdown = render_as(ruled(), "md")
    order = ["## nsa-doctor: NO-GO", "`production`", "| check |", "<details>", "### Limits", "### Not checked"]
    assert sorted(order, key=markdown.index) == order
    assert markdown.index("| `HNG101` |") < markdown.index("| `PRF401` |")
    assert "*(accepted)*" in markdown
    assert "nsa-doctor go-no-go --policy production" in markdown
