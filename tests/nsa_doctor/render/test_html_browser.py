"""The page in a browser: it loads and runs nothing, its folds open, its links lead somewhere, and it fits a phone."""

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.render.html import render
from tests.nsa_doctor.render.chromium import PROGRAM, browse, measured_pages
from tests.nsa_doctor.render.pages import BARE, PASSED, everything
from tests.nsa_doctor.reports import HOSTILE, filled

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium")
WIDTHS = (320, 390, 768, 1280)


def hostile(_: str) -> str:
    return " ".join(text[:3000] for text in HOSTILE.values())


PAGES: dict[str, Callable[[], str]] = {
    "bare": lambda: render(BARE),
    "passed": lambda: render(PASSED),
    "everything": lambda: render(everything()),
    "hostile": lambda: render(filled(everything(), hostile)),
}


@cache
def page(name: str) -> str:
    return PAGES[name]()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    pages = {name: page(name) for name in PAGES}
    return measured_pages(tmp_path_factory.mktemp("measured"), pages, WIDTHS)


each_page = pytest.mark.parametrize("name", PAGES)
each_width = pytest.mark.parametrize("width", WIDTHS)


@each_page
@each_width
def test_nothing_reaches_over_the_edge(seen: dict[str, dict], name: str, width: int) -> None:
    found = seen[f"{name} {width}"]
    for state in ("folded", "unfolded"):
        assert found[state]["wide"] == []
        assert found[state]["scroll"] <= width


@each_page
def test_every_fold_is_shut_and_opens(seen: dict[str, dict], name: str) -> None:
    found = seen[f"{name} 390"]
    assert found["folds"] >= 1
    assert found["alreadyOpen"] == found["stuck"] == 0


@each_page
def test_every_link_has_its_target(seen: dict[str, dict], name: str) -> None:
    found = seen[f"{name} 390"]
    assert found["links"] >= 5
    assert found["lost"] == []


@each_page
def test_a_browser_finds_nothing_to_run_or_load(seen: dict[str, dict], name: str) -> None:
    found = seen[f"{name} 1280"]
    assert (found["scripts"], found["handlers"], found["frames"]) == (0, [], 0)


@each_width
def test_pictures_are_there_and_large_enough_to_read(seen: dict[str, dict], width: int) -> None:
    found = seen[f"everything {width}"]
    assert found["pictures"] == len(re.findall('class="picture', page("everything"))) - 1  # one of two time lines
    assert found["smallest"] >= 0.75
    assert "none" not in found["colours"]


def test_pictures_and_page_turn_dark(tmp_path: Path, seen: dict[str, dict]) -> None:
    option = "--blink-settings=preferredColorScheme=0"
    dark = measured_pages(tmp_path, {"everything": page("everything")}, [1280], option)["everything 1280"]
    light = seen["everything 1280"]
    assert brightness(dark["ground"]) < 60 < 200 < brightness(light["ground"])
    assert set(dark["colours"]).isdisjoint(light["colours"])


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"\d+", colour)[:3])) / 3


# The page alone, without a frame around it


class Recorder(http.server.BaseHTTPRequestHandler):
    """A proxy that knows one page, and remembers what it was asked for."""

    asked: list[str]
    text: str

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = self.text.encode() if self.path.endswith("/report.html") else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ask() -> Iterator[Callable[[str], tuple[list[str], str]]]:
    """`ask(page)` opens a page over HTTP: what it made the browser ask for, and what the browser complained of."""
    servers = []

    def opened(text: str) -> tuple[list[str], str]:
        handler = type("OfOnePage", (Recorder,), {"asked": [], "text": text})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        done = browse(
            f"--proxy-server=http://127.0.0.1:{server.server_port}",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            "--dump-dom",
            "http://report.test/report.html",
        )
        assert "</html>" in done.stdout
        own = [each for each in handler.asked if not re.search(r"\b(google|googleapis|gstatic)\.com\b", each)]
        return own, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)

    yield opened
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", ["everything", "hostile"])
def test_a_page_asks_for_nothing_and_complains_of_nothing(
    ask: Callable[[str], tuple[list[str], str]], name: str
) -> None:
    assert ask(page(name)) == (["http://report.test/report.html"], "")


def test_what_a_page_asks_for_would_be_seen(ask: Callable[[str], tuple[list[str], str]]) -> None:
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page("bare"))
    bad = '<img src="http://evil.example/x.png"><script>console.error("seen")</script></body>'
    asked, complained = ask(free.replace("</body>", bad))
    assert asked == ["http://report.test/report.html", "http://evil.example/x.png"]
    assert '"seen"' in complained


def test_the_policy_stops_what_might_slip_through(ask: Callable[[str], tuple[list[str], str]]) -> None:
    bad = (
        '<img src="http://evil.example/x.png" onerror="document.title=1"><script>console.error("seen")</script></body>'
    )
    asked, complained = ask(page("bare").replace("</body>", bad))
    assert asked == ["http://report.test/report.html"]
    assert '"seen"' not in complained
    assert "Content Security Policy" in complained


# On paper


def pages_printed(folder: Path, text: str) -> int:
    (folder / "page.html").write_text(text, encoding="utf-8")
    browse("--no-pdf-header-footer", f"--print-to-pdf={folder / 'page.pdf'}", (folder / "page.html").as_uri())
    content = (folder / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", content))


def test_folds_are_open_on_paper(tmp_path: Path) -> None:
    fold = f"<details><summary>long</summary>{'<p>line</p>' * 300}</details>"
    text = page("bare").replace("</main>", f"{fold}</main>")
    folded = pages_printed(tmp_path, text)
    assert folded == pages_printed(tmp_path, text.replace("<details>", "<details open>"))
    assert folded > pages_printed(tmp_path, page("bare")) + 3


def test_checks_that_do_not_apply_take_no_paper(tmp_path: Path) -> None:
    def printed(is_required: bool) -> int:
        skipped = Result(code="DEC101", name="x", verdict=Verdict.SKIP, is_required=is_required)
        results = tuple(replace(skipped, reason=f"it offers no part {number}") for number in range(300))
        return pages_printed(tmp_path, render(replace(BARE, results=results)))

    assert printed(is_required=False) <= pages_printed(tmp_path, page("bare")) + 1
    assert printed(is_required=True) > printed(is_required=False) + 3


def test_everything_can_be_printed(tmp_path: Path) -> None:
    assert pages_printed(tmp_path, page("everything")) > 5
