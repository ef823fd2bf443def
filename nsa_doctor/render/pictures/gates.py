"""What the gates of checkpoints give their branches, layer by layer: the mean weight, and how far it goes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsa_doctor.core.finding import Report
from nsa_doctor.core.text import short_number
from nsa_doctor.render.pictures.paper import PAINT, SMALL, Sheet, axes, drawn, label_text, words
from nsa_doctor.render.pictures.picture import Key, Panel, Picture, Table, tabled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 360
_RIGHT, _TOP, _BELOW = 96.0, 6.0, 26.0
_LETTER_WIDTH, _LONGEST_NAME, _MOST_LEFT = 6.4, 16, 110.0
_LANE, _BETWEEN = 11.0, 10.0
_MOST_GATES = 48
_MOST_PANELS = 8
_STYLES = (("one", "o", "●"), ("two", "s", "■"), ("three", "^", "▲"), ("four", "D", "◆"))
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_Gate = Mapping[str, Any]


def gates_picture(report: Report) -> Picture | None:
    """A panel for each file; nothing where no gate was found."""
    if not report.gates:
        return None
    files: dict[str, list[_Gate]] = {}
    for gate in report.gates:
        files.setdefault(str(gate["checkpoint"]), []).append(gate)
    shown = {file: probed for file, gates in files.items() if (probed := [gate for gate in gates if gate["probe"]])}
    names = _names(report.gates)
    panels = [
        _panel(number, file, gates, names)
        for number, (file, gates) in enumerate(list(shown.items())[:_MOST_PANELS], start=1)
    ]
    legend = [Key(_STYLES[index][0], _STYLES[index][2], name) for index, name in enumerate(names[: len(_STYLES)])]
    return Picture(
        name="gates",
        title="Gates by layer",
        short="Gates",
        sentences=tuple(_sentences(report.gates, len(shown) - len(panels))),
        panels=tuple(panels),
        legend=tuple(legend) if panels else (),
        table=_table(report.gates, has_files=len(files) > 1),
    )


def _names(gates: Sequence[_Gate]) -> list[str]:
    return list(dict.fromkeys(str(branch["name"]) for gate in gates for branch in _branches(gate)))


def _branches(gate: _Gate) -> Sequence[Mapping[str, Any]]:
    return gate["probe"]["branches"] if gate["probe"] else ()


def _sentences(gates: Sequence[_Gate], num_left_out: int) -> Iterator[str]:
    counted = dict.fromkeys(str(gate["verdict"]) for gate in gates)
    yield ", ".join(f"{sum(gate['verdict'] == verdict for gate in gates)} {verdict}" for verdict in counted) + "."
    inputs = next((gate["probe"]["num_inputs"] for gate in gates if gate["probe"]), None)
    if inputs is not None:
        yield (
            f"Each branch's weight over {inputs} standard normal inputs: the mark is its mean, the line goes from the "
            "least to the largest."
        )
    if num_left_out > 0:
        yield f"{num_left_out} more files are in the table alone."


def _panel(number: int, file: str, gates: Sequence[_Gate], names: Sequence[str]) -> Panel:
    shown = gates[:_MOST_GATES]
    lanes = min(max(len(_branches(gate)) for gate in shown), len(_STYLES))
    row = lanes * _LANE + _BETWEEN
    labels = [label_text(_label(gate), _LONGEST_NAME) for gate in shown]
    left = min(_MOST_LEFT, 14 + max(map(len, labels)) * _LETTER_WIDTH)
    high = len(shown) * row
    sheet = Sheet(
        name=f"gates-{number}",
        width=_WIDTH,
        height=round(_TOP + high + _BELOW),
        label=f"Weights of the branches, {len(shown)} gates of {file}",
        description=" ".join(_in_words(gate) for gate in shown),
        kind="plot",
    )

    def draw(figure: "Figure") -> None:
        own = axes(figure, (left, _TOP, _WIDTH - left - _RIGHT, high))
        own.grid(visible=False)
        own.grid(axis="x", color=PAINT["rule"], linewidth=0.7)
        own.set_xlim(-0.02, 1.02)
        own.set_ylim(high, 0)
        own.set_yticks([])
        own.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], parse_math=False)
        for place, (gate, label) in enumerate(zip(shown, labels, strict=True)):
            middle = (place + 0.5) * row
            at_the_left, at_the_right = -(8 / (_WIDTH - left - _RIGHT)), 1 + 10 / (_WIDTH - left - _RIGHT)
            across = own.get_yaxis_transform()
            words(own, at_the_left, middle, label, transform=across, ha="right", va="center", fontsize=SMALL)
            is_ill = bool(gate["illnesses"])
            style = {"color": PAINT["bad" if is_ill else "soft"], "fontweight": "bold" if is_ill else "normal"}
            words(
                own, at_the_right, middle, str(gate["verdict"]), transform=across, va="center", fontsize=SMALL, **style
            )
            _draw_branches(own, gate, names, place * row + _BETWEEN / 2)

    hidden = f"; {len(gates) - len(shown)} more in the table" if len(gates) > len(shown) else ""
    return Panel(drawn(sheet, draw), f"{file}{hidden}")


def _draw_branches(own: "Axes", gate: _Gate, names: Sequence[str], top: float) -> None:
    for lane, branch in enumerate(_branches(gate)[: len(_STYLES)]):
        colour, marker, _ = _STYLES[names.index(str(branch["name"])) % len(_STYLES)]
        y = top + (lane + 0.5) * _LANE
        own.hlines(y, branch["least"], branch["most"], color=PAINT[colour], linewidth=3, alpha=0.4)
        own.scatter([branch["mean"]], [y], color=PAINT[colour], marker=marker, s=26, linewidths=0, zorder=3)


def _label(gate: _Gate) -> str:
    """The number of the layer; the whole name where there is none."""
    layer = str(gate["layer"])
    number = _LAYER_NUMBER.search(layer)
    return f"layer {number[0]}" if number else layer


def _in_words(gate: _Gate) -> str:
    weights = ", ".join(f"{branch['name']} {branch['mean']:.2f}" for branch in _branches(gate))
    return f"{gate['layer']}: {weights}; {gate['verdict']}."


def _table(gates: Sequence[_Gate], *, has_files: bool) -> Table:
    rows = []
    for gate in gates:
        probe, drift = gate["probe"], gate["drift"]
        weights = "; ".join(
            f"{branch['name']} {branch['mean']:.3f} ({branch['least']:.3f} to {branch['most']:.3f})"
            for branch in _branches(gate)
        )
        said = ", ".join(map(str, gate["illnesses"])) or gate["verdict"]
        rows.append((
            *((str(gate["checkpoint"]),) if has_files else ()),
            str(gate["layer"]),
            f"{said}: {gate['unprobed']}" if gate["unprobed"] else str(said),
            weights,
            f"{probe['entropy']:.2f}" if probe else "",
            f"{probe['flat']:.0%}" if probe else "",
            short_number(drift["relative"]) if drift else "",
            *_figures(gate["weight"]),
            *_figures(gate["bias"]),
        ))  # fmt: skip
    parts = [f"{part} {name}" for part in ("weight", "bias") for name in ("mean", "std", "norm", "zeros")]
    heading = (*(("file",) if has_files else ()), "gate", "verdict", "mean weight (least to largest)")
    return tabled((*heading, "entropy", "flat", "drift", *parts), rows)


def _figures(part: Mapping[str, Any] | None) -> tuple[str, ...]:
    if part is None:
        return ("", "", "", "")
    numbers = [short_number(part[name]) if math.isfinite(part[name]) else "" for name in ("mean", "std", "norm")]
    return (*numbers, f"{part['zeros']:.0%}")
