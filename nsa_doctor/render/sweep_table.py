"""The table of a sweep: lengths down, tensors across, a section per dtype and kind of input."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import GRADIENTS, MODES, OTHERS, OUTPUT, TARGETS, Census, Measurement
from nsa_doctor.core.text import escaped, joined, short_bytes, short_count, short_number

_TROUBLE_WORDS = {
    "raised": "raises",
    "wrong_shape": "wrong shape",
    "out_of_memory": "no memory",
    "timeout": "hangs",
    "died": "dies",
    "not_measured": "not tried",
}
_GATED = "gated"
_MOST_FINITE_ROWS = 24


def sweep_tables(report: Report) -> Iterator[tuple[str, Table | None]]:
    """(heading, table) per dtype and kind of input, in the order measured; then how to read them."""
    sections: dict[tuple[str, str], dict[int, list[Measurement]]] = {}
    for measurement in report.measurements:
        point = measurement.point
        rows = sections.setdefault((point.dtype, point.values), {})
        rows.setdefault(point.length, []).append(measurement)
    for (dtype, values), rows in sections.items():
        shown = _shown(rows, report.options.get("lengths", ()))
        heading = escaped(dtype if values == "normal" else f"{dtype}, {values} input")
        yield heading, _table(shown, not report.options.get("forward_only"))
        if hidden := sorted(set(rows) - set(shown)):
            yield f"and {len(hidden)} more lengths from {hidden[0]} to {hidden[-1]}: all finite", None
    if sections:
        yield (
            "98k <=3.1: 98 thousand values, none larger. Modes: train, eval, no_grad.\n"
            "Seconds and peak memory: forward and backward in training.",
            None,
        )


def _shown(rows: Mapping[int, list[Measurement]], asked: Sequence[int]) -> dict[int, list[Measurement]]:
    """All rows, or when there are many those asked for and those that are not finite."""
    if len(rows) <= _MOST_FINITE_ROWS:
        return dict(sorted(rows.items()))
    return {
        length: row
        for length, row in sorted(rows.items())
        if length in asked or not all(measurement.is_finite for measurement in row)
    }


def _table(rows: Mapping[int, list[Measurement]], has_gradients: bool) -> Table:
    seen = dict.fromkeys(census.name for row in rows.values() for m in row for census in m.censuses)
    last = [OUTPUT, *([OTHERS] if OTHERS in seen else []), *([GRADIENTS] if has_gradients else [])]
    names = [*(name for name in seen if name not in (_GATED, *TARGETS)), *last]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True)
    table.add_column("S", justify="right", no_wrap=True)
    for name in names:
        table.add_column("gated output" if name == OUTPUT and len(names) > 2 else escaped(name), min_width=9)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    for length, row in rows.items():
        timed = next((m for m in row if m.seconds is not None), None)
        seconds = short_number(timed.seconds, 2) if timed is not None and timed.seconds is not None else "-"
        cells = [_cell(row, name) for name in names]
        table.add_row(str(length), *cells, seconds, short_bytes(timed.peak_bytes if timed else None))
    return table


def _cell(row: Sequence[Measurement], name: str) -> str:
    """One status for all modes, or each status with its modes; below, how many values and the largest magnitude."""
    by_status: dict[str, list[str]] = {}
    largest: list[Census] = []
    for measurement in sorted(row, key=lambda m: MODES.index(m.point.mode)):
        status, census = _status(measurement, name)
        if status:
            by_status.setdefault(status, []).append(measurement.point.mode)
        largest += [census] if census else []
    if not by_status:
        return "-"
    lines: list[str] = []
    for status, modes in by_status.items():
        lines.append(status)
        if len(by_status) > 1:
            lines += [f" in {mode}" for mode in modes]
    if largest:
        values = max(census.largest for census in largest)
        lines.append(f"{short_count(largest[0].num_values)} <={short_number(values)}")
    return "\n".join(lines)


def _status(measurement: Measurement, name: str) -> tuple[str, Census | None]:
    census = measurement.census(name)
    if census is None and measurement.trouble is not None:
        only_training = name == GRADIENTS and measurement.point.mode != "train"
        return ("" if only_training else _TROUBLE_WORDS[measurement.trouble.kind]), None
    if name == OUTPUT and (gated := measurement.census(_GATED)) is not None and not gated.is_finite:
        census = gated
    if census is None:
        return "", None
    if census.is_finite:
        return "finite", census
    counts = [(census.num_nan, "NaN"), (census.num_inf, "inf")]
    return joined([f"{short_count(count)} {kind}" for count, kind in counts if count]), census
