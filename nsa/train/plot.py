"""training.png: the loss beside what the data allows, and how far the gates have moved from equal weights."""

import io
import math
from pathlib import Path
from typing import Any

from nsa.train.files import write_whole
from nsa.train.table import read_table

_BRANCHES = {"cmp": "compressed", "sel": "selected", "win": "sliding"}
_COLOURS = {"cmp": "tab:blue", "sel": "tab:orange", "win": "tab:green"}
_MOST_LAYERS = 24


def draw(folder: Path, vocab_size: int, entropy: float | None, uniform: float) -> Path | None:
    """From the tables in the folder; None when they hold nothing. `uniform` is a gate's weight without preference."""
    training, gates = read_table(folder / "training.csv"), read_table(folder / "gates.csv")
    if not training:
        return None
    from matplotlib.figure import Figure  # takes a second to import

    layers = sorted({int(row["layer"]) for row in gates})[:_MOST_LAYERS]
    num_columns = min(4, max(1, len(layers)))
    num_rows = 1 + -(-len(layers) // num_columns)
    figure = Figure(figsize=(max(8.0, 3.0 * num_columns), 3.5 + 2.0 * (num_rows - 1)), layout="constrained")
    grid = figure.add_gridspec(num_rows, num_columns, height_ratios=[2.0] + [1.0] * (num_rows - 1))
    _draw_loss(figure.add_subplot(grid[0, :]), folder, training, vocab_size, entropy)
    for place, layer in enumerate(layers):
        axes = figure.add_subplot(grid[1 + place // num_columns, place % num_columns])
        _draw_gates(axes, [row for row in gates if int(row["layer"]) == layer], layer, uniform)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    path = folder / "training.png"
    write_whole(path, content.getvalue())
    return path


def _draw_loss(axes: Any, folder: Path, training: list[dict[str, Any]], vocab_size: int, entropy: float | None) -> None:
    axes.plot(_numbers(training, "step"), _numbers(training, "loss"), linewidth=1, label="training")
    held_out = read_table(folder / "evaluations.csv")
    if held_out:
        axes.plot(_numbers(held_out, "step"), _numbers(held_out, "loss"), "o", markersize=4, label="held out")
    axes.axhline(math.log(vocab_size), color="grey", linestyle=":", label=f"ln {vocab_size}, knowing nothing")
    if entropy is not None:
        axes.axhline(entropy, color="black", linestyle="--", label=f"entropy of the data, {entropy:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(loc="upper right")


def _draw_gates(axes: Any, rows: list[dict[str, Any]], layer: int, uniform: float) -> None:
    for name, label in _BRANCHES.items():
        axes.plot(_numbers(rows, "step"), _numbers(rows, name), color=_COLOURS[name], label=label)
    axes.axhline(uniform, color="grey", linestyle=":")
    axes.set(xlabel="step", ylim=(0, 1), title=f"gates of layer {layer}")
    if layer == 0:
        axes.set_ylabel("mean weight")
        axes.legend(fontsize="small")


def _numbers(rows: list[dict[str, Any]], column: str) -> list[float]:
    return [float(row[column]) if row[column] else math.nan for row in rows]
