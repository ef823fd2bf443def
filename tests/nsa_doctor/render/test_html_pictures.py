"""Pictures on the page: drawn for what is there, said in words too, in the page's colours, whatever the data."""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import Point
from nsa_doctor.render import html
from nsa_doctor.render.html import render
from nsa_doctor.render.pictures import timeline
from nsa_doctor.render.pictures.gates import gates_picture
from nsa_doctor.render.pictures.growth import growth_picture
from nsa_doctor.render.pictures.paper import PAINT, label_text
from nsa_doctor.render.pictures.picture import Picture
from nsa_doctor.render.pictures.states import TROUBLES
from nsa_doctor.render.pictures.sweep import sweep_picture
from nsa_doctor.render.pictures.timeline import thinned, timeline_picture
from tests.nsa_doctor.render import pages
from tests.nsa_doctor.render.page_parser import Element, read_page
from tests.nsa_doctor.render.pages import BARE, census, gated, measured, swept, timed, trained, troubled

DRAWN = {"sweep": (sweep_picture, swept), "growth": (growth_picture, timed), "run": (timeline_picture, trained)}
DRAWN["gates"] = (gates_picture, gated)
each_picture = pytest.mark.parametrize("name", DRAWN)


@cache
def usual(name: str) -> Picture | None:
    draw, make = DRAWN[name]
    return draw(make())


def picture_of(name: str, report: Report | None = None) -> Picture:
    picture = usual(name) if report is None else DRAWN[name][0](report)
    assert picture is not None
    return picture


def svg(picture: Picture, panel: int = 0) -> Element:
    return read_page(str(picture.panels[panel].svg)).one("svg", "picture")


def descriptions(picture: Picture) -> str:
    return " ".join(next(svg(picture, number).all("desc")).text for number in range(len(picture.panels)))


def letters(picture: Element) -> list[str]:
    return [each.text for each in picture.all("text")]


@each_picture
def test_a_picture_is_drawn_only_for_what_is_there(name: str) -> None:
    assert DRAWN[name][0](BARE) is None


@each_picture
def test_a_picture_takes_every_colour_from_the_page(name: str) -> None:
    for panel in picture_of(name).panels:
        assert not re.search(r"#[0-9a-f]{3,8}\b(?!-)", re.sub(r'(href="|url\()#[\w-]+', "", panel.svg))
        assert set(re.findall(r"var\(--([\w-]+)\)", panel.svg)) <= set(PAINT)


@each_picture
def test_a_picture_belongs_to_its_page(name: str) -> None:
    picture = picture_of(name)
    ids: list[str] = []
    for panel in picture.panels:
        assert "<style" not in panel.svg
        assert "<metadata" not in panel.svg
        assert "font-family" not in panel.svg
        ids += re.findall(r' id="([^"]+)"', panel.svg)
        references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', panel.svg)
        assert {one or other for one, other in references} <= set(ids)
    assert len(ids) == len(set(ids))


@each_picture
def test_a_picture_fits_a_phone(name: str) -> None:
    picture = picture_of(name)
    for number, panel in enumerate(picture.panels):
        width = float(svg(picture, number).attributes["viewbox"].split()[2])
        assert width <= 400 or 'class="picture wide"' in panel.svg


# The sweep


@pytest.mark.parametrize("kind", pages.TROUBLES)
def test_every_trouble_has_a_letter_and_a_word(kind: str) -> None:
    picture = picture_of("sweep", replace(BARE, measurements=(measured(8, census("output")), troubled(9, kind))))
    state = TROUBLES[kind]
    assert state.letter in letters(svg(picture))
    assert (state.paint, state.letter, state.meaning) in [(key.kind, key.letter, key.meaning) for key in picture.legend]
    assert f"output: {state.word} at S=9." in descriptions(picture)
    assert state.word in picture.table.rows[0]


def test_no_two_states_share_a_letter() -> None:
    known = [key.letter for key in picture_of("sweep").legend if key.letter]
    assert len(known) == len(set(known)) == 9


def test_a_sweep_says_where_values_are_not_finite() -> None:
    words = descriptions(picture_of("sweep"))
    assert "output: NaN at S=17." in words
    assert "output: inf at S=18." in words
    assert "gradients: NaN and inf at S=17." in words
    assert "output: NaN at S=64 with zeros input." in words


def test_a_cell_says_what_it_is_to_who_points_at_it() -> None:
    assert "S=17, output: NaN, 3 of 4 rows" in [each.text for each in svg(picture_of("sweep")).all("title")]


def test_a_sweep_has_a_panel_for_each_dtype_and_mode() -> None:
    report = replace(BARE, measurements=(*swept().measurements, measured(8, census("output"), dtype="bfloat16")))
    assert [panel.heading for panel in picture_of("sweep", report).panels] == [
        "float32, training",
        "float32, eval mode",
        "float32, no_grad",
        "bfloat16, training",
        "float32, training, unusual input",
    ]


def test_of_a_long_sweep_every_length_that_is_not_finite_is_drawn() -> None:
    bad = {7, 500, 901}
    rows = [measured(length, census("output", num_nan=int(length in bad))) for length in range(1, 1000)]
    picture = picture_of("sweep", replace(BARE, measurements=tuple(rows)))
    shown = letters(svg(picture))
    assert {"6", "7", "8", "499", "500", "501", "900", "901", "902", "1", "999"} <= set(shown)
    assert shown.count("N") == 3
    assert picture.panels[0].heading == "float32, training; 951 more points, all finite"
    assert [row[0] for row in picture.table.rows[:3]] == ["7", "500", "901"]
    assert picture.table.left_out == 999 - len(picture.table.rows)


def test_of_many_lengths_that_are_not_finite_some_are_drawn_from_all_over() -> None:
    rows = [measured(length, census("output", num_nan=int(length > 100))) for length in range(1, 1000)]
    picture = picture_of("sweep", replace(BARE, measurements=tuple(rows)))
    lengths = [int(each) for each in letters(svg(picture)) if each.isdigit()]
    assert len(lengths) == 48
    assert {1, 101, 999} <= set(lengths)
    assert max(after - before for before, after in pairwise(lengths[1:])) < 110
    assert (
        picture.panels[0].heading
        == f"float32, training; 951 more points, {899 - sum(n > 100 for n in lengths)} not finite"
    )


# Time and memory


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_growth_names_the_exponents_that_were_fitted(power: float) -> None:
    said = picture_of("growth", timed(power)).sentences
    assert f"Forward: grows as S^{power:.2f} (95 %: {power - 0.1:.2f} to {power + 0.1:.2f})." in said


@pytest.mark.parametrize("power", [1, 2])
def test_growth_of_a_sweep_is_fitted_where_it_shows(power: int) -> None:
    rows = [
        measured(2**n, census("output"), seconds=max(1e-2, 1e-6 * 2 ** (n * power))) for n in range(15 * 2 // power)
    ]
    (said,) = [
        each for each in picture_of("growth", replace(BARE, measurements=tuple(rows))).sentences if "pass" in each
    ]
    assert said.startswith(f"A pass in training: grows as S^{power}.00 from S=")


def test_growth_draws_no_line_through_one_length() -> None:
    assert growth_picture(replace(BARE, measurements=(measured(8, census("output"), seconds=1.0),))) is None


def test_growth_names_every_line_at_its_end() -> None:
    picture = picture_of("growth")
    assert [panel.heading for panel in picture.panels] == ["Time of a pass", "Peak memory"]
    assert {"forward", "with backward", "dense forward"} <= set(letters(svg(picture)))
    assert picture.shares == (("select", 0.75), ("slide", 0.25))


# The run


def test_a_run_is_drawn_for_a_phone_and_for_a_screen() -> None:
    picture = picture_of("run")
    assert [svg(picture, number).classes[1] for number in (0, 1)] == ["narrow", "wide"]
    assert letters(svg(picture))[:1] == letters(svg(picture, 1))[:1]


def test_a_loss_that_is_not_finite_is_counted() -> None:
    picture = picture_of("run")
    assert "loss, 2 not finite" in letters(svg(picture))
    assert "not finite 2 times" in descriptions(picture)


def test_a_run_tells_its_numbers_dumps_and_checkpoints() -> None:
    picture = picture_of("run")
    assert "1 stack dump: watchdog_stackdump_1.txt" in picture.sentences
    assert "2 checkpoints: step_100.pt, step_200.pt" in picture.sentences
    rows = dict(picture.table.rows)
    assert rows["training steps made"] == "399"
    assert rows["starts from a checkpoint that went on"] == "not measured"


def test_a_run_without_times_is_drawn_by_its_steps() -> None:
    run = dict(trained().run)
    run["series"] = {**run["series"], "ts": [None] * 400}
    assert any(each.endswith(" step") for each in letters(svg(picture_of("run", replace(BARE, run=run)))))


def test_a_memory_of_nothing_is_not_drawn() -> None:
    run = dict(trained().run)
    run["series"] = {**run["series"], "memory": [0.0] * 400}
    picture = picture_of("run", replace(BARE, run=run))
    assert "memory" not in picture.panels[0].svg.partition("</title>")[0]
    assert "memory" not in letters(svg(picture))


def test_every_part_of_a_run_that_beats_has_its_time_between_heartbeats() -> None:
    silences = [[1.7e9 + 2.0 * step, 2.0] for step in range(20_000)]
    series = {"ts": [1.7e9, 1.7e9 + 40_000.0], "step": [0, 20_000], "loss": [2.0, 1.0]}
    read = timeline._read({"series": series, "silences": silences})
    assert read is not None
    drawn = timeline._longest_by_column(read, 360)
    assert 350 <= len(drawn) <= 361
    assert max(after - before for (before, _), (after, _) in pairwise(drawn)) < 400


def test_a_run_that_left_no_heartbeats_still_tells_its_facts() -> None:
    run = {**trained().run, "series": {name: [] for name in trained().run["series"]}, "silences": []}
    picture = picture_of("run", replace(BARE, run=run))
    assert picture.panels == ()
    assert "1 stack dump: watchdog_stackdump_1.txt" in picture.sentences
    assert ("training steps made", "399") in picture.table.rows


@pytest.mark.parametrize("count", [8, 100, 799])
def test_thinning_keeps_the_extremes(count: int) -> None:
    points = [
        (float(x), math.sin(x) + (50.0 if x == 3217 else 0.0) - (70.0 if x == 4001 else 0.0)) for x in range(5000)
    ]
    kept = thinned(points, count)
    assert {points[0], points[-1], points[3217], points[4001]} <= set(kept)
    assert len(kept) <= count + 4
    assert kept == sorted(set(kept))


def test_what_needs_no_thinning_stays() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    assert thinned(points, 2) == points


# Gates


def test_gates_stand_by_layer_with_their_verdicts() -> None:
    picture = picture_of("gates")
    assert [panel.heading for panel in picture.panels] == ["model.pt", "later.pt"]
    assert {"layer 0", "layer 1", "healthy", "collapsed"} <= set(letters(svg(picture)))
    assert [key.meaning for key in picture.legend] == ["compressed", "selected", "sliding"]
    assert picture.sentences[0] == "2 healthy, 1 collapsed, 1 not probed."


def test_a_gate_that_was_not_probed_says_why() -> None:
    rows = {(row[0], row[1]): row for row in picture_of("gates").table.rows}
    assert rows["later.pt", "layers.1.gate"][2] == "not probed: its shape is not known"
    assert rows["later.pt", "layers.0.gate"][6] == "0.25"


# Whatever the data, whatever the machine


def test_a_picture_that_cannot_be_drawn_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report) -> Picture:
        raise ArithmeticError("no <ink>")

    monkeypatch.setattr(html, "_PICTURES", (("the sweep", broken), ("time and memory", growth_picture)))
    page = read_page(render(timed()))
    assert "The picture of the sweep could not be drawn: ArithmeticError: no <ink>." in page.one("main").text
    page.by_id("growth")


def test_an_interrupt_is_no_picture_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(report: Report) -> Picture:
        raise KeyboardInterrupt

    monkeypatch.setattr(html, "_PICTURES", (("the sweep", stopped),))
    with pytest.raises(KeyboardInterrupt):
        render(BARE)


def odd_reports() -> Iterator[tuple[str, Report]]:
    name = "$x^2$ \\frac{a}{b} <b>&"
    yield "mathematics", replace(BARE, measurements=(measured(8, census(name), census("output")),))
    yield "endless name", replace(BARE, measurements=(measured(8, census("x" * 9999), census("output")),))
    sizes = (5e-324, 1e-9, 1e300)
    rows = [measured(10**n, census("output"), seconds=each) for n, each in enumerate(sizes)]
    yield "all sizes", replace(BARE, measurements=tuple(rows))
    same = [measured(length, census("output"), seconds=0.5) for length in (10**9, 10**9 + 1)]
    yield "next to each other", replace(BARE, measurements=tuple(same))
    nothing = [measured(length, census("output"), seconds=0.0) for length in (1, 2)]
    yield "no time at all", replace(BARE, measurements=tuple(nothing))
    series: dict[str, Any] = {"ts": [1e300, 2.0, 3.0, math.nan, None, 5.0], "step": [1, 2, 3, 4, 5, 6]}
    series |= {"loss": [1e308, -1e308, math.nan, 4.0, math.inf, 6.0], "memory": [1e30, None, -5.0, 3.0, 2.0, 1.0]}
    yield "wild run", replace(BARE, run={"folder": "x", "series": series, "silences": [[1.0, math.inf], [2.0, 1.0]]})
    constant = {"ts": [1.0, 2.0], "step": [0, 1], "loss": [0.0, 0.0], "tokens_per_second": [None, None], "memory": []}
    yield "constant run", replace(BARE, run={"folder": "x", "series": constant})
    yield "empty run", replace(BARE, run={"folder": "x", "series": {}, "silences": [], "numbers": {}})
    yield "no gate probed", replace(BARE, gates=(gated().gates[3],))


@pytest.mark.parametrize(
    ("name", "report"), list(odd_reports()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_odd_numbers_and_names_are_drawn(name: str, report: Report) -> None:
    page = render(report)
    assert "could not be drawn" not in page
    read_page(page)


def test_a_label_is_short_and_of_signs_that_every_font_has() -> None:
    assert label_text("a" * 50, 11) == "aaaaa…aaaaa"
    assert label_text("שלום\x1b") == "\\u05e9\\u05dc\\u05d5\\u05dd\\x1b"


CODE = """
import sys
from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import Census, Measurement, Point
from nsa_doctor.render.html import render
from nsa_doctor.render.pictures import timeline
tensor = Census(name="output", num_values=1, num_nan=0, num_inf=0, largest=1.0, num_rows=1, num_bad_rows=0)
points = tuple(Measurement(point=Point(length=n), censuses=(tensor,)) for n in (1, 2)) if "draw" in sys.argv else ()
page = render(Report(command="run", subject={"name": "x"}, options={}, environment={}, measurements=points))
print("matplotlib" in sys.modules, "torch" in sys.modules, page.count("<svg class=\\"picture"), "not be drawn" in page)
"""


def rendered_apart(*words: str, **environment: str) -> str:
    given = {key: value for key, value in os.environ.items() if not key.startswith(("MPL", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        env=given | {"PYTHONPATH": str(Path(html.__file__).parents[2])} | environment,
        cwd=environment.get("PWD"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_a_page_without_pictures_does_not_wait_for_matplotlib() -> None:
    assert rendered_apart() == "False False 0 False\n"


def test_pictures_need_no_home_to_write_to() -> None:
    assert rendered_apart("draw", HOME="/proc/nowhere") == "True False 1 False\n"


def test_pictures_do_not_change_with_the_readers_own_settings(tmp_path: Path) -> None:
    settings = "text.usetex: True\nfont.size: 40\nbackend: nonsense\nsvg.fonttype: path\n"
    (tmp_path / "matplotlibrc").write_text(settings, encoding="utf-8")
    assert rendered_apart("draw", PWD=str(tmp_path)) == "True False 1 False\n"
    assert rendered_apart("draw", MPLBACKEND="module://nowhere", MPLCONFIGDIR=str(tmp_path)) == "True False 1 False\n"


def test_points_of_a_kind_that_is_not_known_are_drawn_last() -> None:
    strange = replace(measured(4, census("output")), point=Point(length=4, dtype="float8"))
    picture = picture_of("sweep", replace(BARE, measurements=(strange, measured(8, census("output")))))
    assert [panel.heading for panel in picture.panels] == ["float32, training", "float8, training"]
