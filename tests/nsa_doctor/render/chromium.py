"""Chromium without a window, and pages measured in it."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless=new",
    "--no-sandbox",  # every page is ours, and a container has no other
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
)
_MEASURE = Path(__file__).with_name("measure.html")


def browse(*options: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run Chromium with a profile of its own."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        return subprocess.run(
            [PROGRAM, *QUIET, f"--user-data-dir={profile}", *options],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=True,
        )


def measured_pages(folder: Path, pages: dict[str, str], widths: Sequence[int], *options: str) -> dict[str, Any]:
    """What Chromium sees of each page at each width, by `name width`."""
    text = _MEASURE.read_text(encoding="utf-8").replace("WIDTHS", json.dumps(list(widths)), 1)
    text = text.replace("PAGES", _for_a_script(pages), 1)
    (folder / "measure.html").write_text(text, encoding="utf-8")
    address = (folder / "measure.html").as_uri()
    done = browse("--virtual-time-budget=20000", "--dump-dom", *options, address)
    start = done.stdout.index('<pre id="found">') + len('<pre id="found">')
    dumped = done.stdout[start : done.stdout.index("</pre>", start)]
    for name, sign in (("lt", "<"), ("gt", ">"), ("amp", "&")):
        dumped = dumped.replace(f"&{name};", sign)
    found: dict[str, Any] = json.loads(dumped)
    assert "error" not in found, found["error"]
    return found


def _for_a_script(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")
