"""The page's colours: there in light and in dark, and text stands out from what it stands on."""

import re
from pathlib import Path

import pytest

from nsa_doctor.render import html
from nsa_doctor.render.pictures.paper import PAINT

STYLE = (Path(html.__file__).with_name("page") / "style.css").read_text(encoding="utf-8")
INKS = ("ink", "soft", "go", "no-go", "unknown", "worse", "halt")
PAIRS = [
    *((ink, ground) for ink in INKS for ground in ("page", "surface")),
    ("ink", "wash"), ("soft", "wash"),
    *((each, "page") for each in ("one", "two", "three", "four", "bad")),
    *((f"on-{each}", each) for each in ("fine", "bad", "worse", "halt", "idle")),
]  # fmt: skip


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS, ids=lambda name: name)
def test_text_stands_out_from_its_ground(ink: str, ground: str, is_dark: bool) -> None:
    colours = [re.findall(rf"--{name}: #([0-9a-f]{{6}})", STYLE)[is_dark] for name in (ink, ground)]
    dim, bright = sorted(brightness(colour) for colour in colours)
    assert (bright + 0.05) / (dim + 0.05) >= 4.5


def brightness(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", PAINT)
def test_every_colour_of_pictures_is_there_in_light_and_in_dark(name: str) -> None:
    assert STYLE.count(f"--{name}: #") == 2
