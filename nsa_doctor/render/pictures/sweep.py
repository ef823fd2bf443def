"""A sweep as a heat map: lengths down, tensors across, one panel for each dtype, mode and kind of input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsa_doctor.core.finding import Report
from nsa_doctor.core.lengths import evenly
from nsa_doctor.core.measurement import DTYPES, GRADIENTS, MODES, OTHERS, OUTPUT, TARGETS, VALUES, Measurement
from nsa_doctor.core.text import joined, short_bytes, short_number
from nsa_doctor.render.pictures.paper import PAINT, SMALL, Sheet, axes, drawn, label_text, words
from nsa_doctor.render.pictures.picture import Key, Panel, Picture, Table, tabled
from nsa_doctor.render.pictures.states import FINITE, GATED, STATES, State, state_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 23.0
_GAP = 2.0
_LEFT, _LEFT_OF_WORDS = 44.0, 122.0
_RIGHT = 34.0
_SLANT = 50
_MOST_ABOVE = 100.0
_LETTER_RISE = 5.0  # of a slanted label, for each letter
_LONGEST_NAME = 16
_MOST_ROWS = 48
_MOST_COLUMNS = 24
_MODE_WORDS = {"train": "training", "eval": "eval mode", "no_grad": "no_grad"}


@dataclass(frozen=True)
class _Grid:
    """What one panel shows: points down, tensors across; `hidden` says how many points there are beside these."""

    name: str
    has_usual_input: bool
    targets: tuple[str, ...]
    rows: tuple[Measurement, ...]
    hidden: str

    @property
    def left(self) -> float:
        return _LEFT if self.has_usual_input else _LEFT_OF_WORDS

    def states(self) -> Iterator[tuple[int, int, State]]:
        """(row, column, state) of every cell."""
        for number, row in enumerate(self.rows):
            for column, name in enumerate(self.targets):
                state = state_of(row, name)
                if state is not None:
                    yield number, column, state


def sweep_picture(report: Report) -> Picture | None:
    """The heat map; nothing where nothing was swept."""
    grids = [grid for grid in _grids(report.measurements) if grid.targets]
    if not grids:
        return None
    longest = max(len(label_text(name, _LONGEST_NAME)) for grid in grids for name in grid.targets)
    above = min(_MOST_ABOVE, 22 + longest * _LETTER_RISE)
    seen = {state for grid in grids for _, _, state in grid.states()}
    return Picture(
        name="sweep",
        title="Sweep: is it finite?",
        short="Sweep",
        sentences=tuple(_sentences(report.measurements)),
        panels=tuple(_panel(number, grid, above) for number, grid in enumerate(grids, start=1)),
        legend=(*(Key(state.paint, state.letter, state.meaning) for state in STATES if state in seen), *_blank(grids)),
        table=_table(report.measurements),
    )


def _blank(grids: Sequence[_Grid]) -> Iterator[Key]:
    if any(state_of(row, name) is None for grid in grids for row in grid.rows for name in grid.targets):
        yield Key("blank", "", "not measured there")


def _grids(measurements: Sequence[Measurement]) -> Iterator[_Grid]:
    by_panel: dict[tuple[str, str, bool], list[Measurement]] = {}
    for each in measurements:
        by_panel.setdefault((each.point.dtype, each.point.mode, each.point.values == "normal"), []).append(each)
    known = _targets(measurements)
    panels = sorted(by_panel, key=lambda key: (not key[2], _place(DTYPES, key[0]), _place(MODES, key[1])))
    for dtype, mode, is_usual in panels:
        rows = sorted(
            by_panel[dtype, mode, is_usual], key=lambda each: (_place(VALUES, each.point.values), each.point.length)
        )
        shown = _shown(rows)
        targets = [name for name in known if any(state_of(row, name) for row in shown)]
        name = f"{dtype}, {_MODE_WORDS.get(mode, mode)}" + ("" if is_usual else ", unusual input")
        yield _Grid(name, is_usual, tuple(targets[:_MOST_COLUMNS]), tuple(shown), _hidden(rows, shown))


def _shown(rows: Sequence[Measurement]) -> list[Measurement]:
    """All of them or, when there are many, those that are not finite and their neighbours, then others evenly."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    bad = [index for index, row in enumerate(rows) if not row.is_finite]
    around = [near for index in bad for near in (index - 1, index + 1) if 0 <= near < len(rows)]
    ends = [0, *bad[:1], len(rows) - 1]
    wanted = dict.fromkeys(
        [*ends, *evenly(bad, _MOST_ROWS - len(ends)), *around, *evenly(range(len(rows)), _MOST_ROWS)]
    )
    return [rows[index] for index in sorted(list(wanted)[:_MOST_ROWS])]


def _hidden(rows: Sequence[Measurement], shown: Sequence[Measurement]) -> str:
    count = len(rows) - len(shown)
    bad = sum(not row.is_finite for row in rows) - sum(not row.is_finite for row in shown)
    return f"; {count} more points, {f'{bad} not' if bad else 'all'} finite" if count else ""


def _targets(measurements: Sequence[Measurement]) -> list[str]:
    """Branches in the order they were met, then outputs and gradients."""
    seen = dict.fromkeys(census.name for each in measurements for census in each.censuses)
    last = [OUTPUT, *([OTHERS] if OTHERS in seen else []), GRADIENTS]
    return [*(name for name in seen if name not in (GATED, *TARGETS)), *last]


def _place(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order)), name


def _panel(number: int, grid: _Grid, above: float) -> Panel:
    labels = [label_text(name, _LONGEST_NAME) for name in grid.targets]
    wide, high = len(labels) * _CELL, len(grid.rows) * _CELL
    sheet = Sheet(
        name=f"sweep-{number}",
        width=round(grid.left + wide + max(_RIGHT, above - 28)),
        height=round(above + high + 2),
        label=f"Heat map of {grid.name}",
        description=_in_words(grid),
        kind="map",
        hints={f"cell-{row}-{column}": hint for row, column, hint in _hints(grid)},
    )

    def draw(figure: "Figure") -> None:
        own = axes(figure, (grid.left, above, wide, high))
        own.set_axis_off()
        own.set_xlim(0, wide)
        own.set_ylim(high, 0)
        for column, label in enumerate(labels):
            words(own, (column + 0.5) * _CELL - 3, -7, label, rotation=_SLANT, fontsize=SMALL, color=PAINT["soft"])
        for place, row in enumerate(grid.rows):
            y = (place + 0.5) * _CELL
            label = f"{row.point.length}" if grid.has_usual_input else f"{row.point.values} {row.point.length}"
            words(own, -8, y, label, ha="right", va="center_baseline", fontsize=SMALL)
        for place, column, state in grid.states():
            _draw_cell(own, column * _CELL, place * _CELL, state, f"cell-{place}-{column}")

    return Panel(drawn(sheet, draw), f"{grid.name}{grid.hidden}")


def _draw_cell(own: "Axes", x: float, y: float, state: State, name: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    inset = _GAP / 2 + 3
    box = FancyBboxPatch(
        (x + inset, y + inset),
        _CELL - 2 * inset,
        _CELL - 2 * inset,
        boxstyle="round,pad=3,rounding_size=4",
        facecolor=PAINT[state.paint],
        linewidth=0,
        gid=name,
        clip_on=False,
    )
    own.add_artist(box)
    if state.letter:
        style = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "fontweight": "bold"}
        words(own, x + _CELL / 2, y + _CELL / 2, state.letter, color=PAINT[f"on-{state.paint}"], **style)


def _hints(grid: _Grid) -> Iterator[tuple[int, int, str]]:
    """What a cell tells who points at it."""
    for number, column, state in grid.states():
        row, name = grid.rows[number], grid.targets[column]
        census = row.census(name)
        hint = f"S={row.point.length}, {name}: {state.word}"
        if census is not None and not census.is_finite:
            hint += f", {census.num_bad_rows} of {census.num_rows} rows"
        yield number, column, hint


def _sentences(measurements: Sequence[Measurement]) -> Iterator[str]:
    idle = sum(each.trouble is not None and each.trouble.kind == "not_measured" for each in measurements)
    fine = sum(each.is_finite for each in measurements)
    lengths = {each.point.length for each in measurements}
    counted = [f"{fine} finite", f"{len(measurements) - fine - idle} not", *([f"{idle} not tried"] if idle else [])]
    yield (
        f"{len(measurements)} points at {len(lengths)} length{'' if len(lengths) == 1 else 's'}"
        f" from {min(lengths)} to {max(lengths)}: {'all finite' if fine == len(measurements) else ', '.join(counted)}."
    )


def _in_words(grid: _Grid) -> str:
    """What is not finite in a panel, for who cannot see it."""
    found: dict[tuple[str, State], list[str]] = {}
    for number, column, state in grid.states():
        if state is not FINITE:
            point = grid.rows[number].point
            at = f"{point.length}" if grid.has_usual_input else f"{point.length} with {point.values} input"
            found.setdefault((grid.targets[column], state), []).append(at)
    if not found:
        return f"{joined(grid.targets)}: finite at all {len(grid.rows)} points."
    return " ".join(f"{name}: {state.word} at S={', '.join(at)}." for (name, state), at in found.items())


def _table(measurements: Sequence[Measurement]) -> Table:
    targets = _targets(measurements)
    rows = []
    for each in sorted(measurements, key=lambda each: each.is_finite):
        point = each.point
        states = [state.word if (state := state_of(each, name)) else "" for name in targets]
        largest = max((census.largest for census in each.censuses), default=None)
        seconds = "" if each.seconds is None else f"{each.seconds:.3g}"
        rows.append((
            str(point.length), point.dtype, point.mode, point.values, *states,
            "" if largest is None else short_number(largest), seconds, short_bytes(each.peak_bytes),
        ))  # fmt: skip
    return tabled(("S", "dtype", "mode", "input", *targets, "largest", "seconds", "peak"), rows)
