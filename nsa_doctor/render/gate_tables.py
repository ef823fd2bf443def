"""The gates of checkpoints as tables: what each gives its branches and its verdict, then its parameters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from nsa_doctor.core.finding import Report
from nsa_doctor.core.text import escaped, short_count, short_number

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_SHORT = {"compressed": "cmp", "selected": "sel", "sliding": "win"}
_MOST_BRANCHES = 6
_WIDEST_LAYER = 30
_MOST_GATES = 200


def gate_tables(report: Report) -> Iterator[tuple[str, Table | None]]:
    """(heading, table) for each file and each shape of gate in it; a heading alone, or a table without one."""
    files: dict[str, list[Mapping[str, Any]]] = {}
    for gate in report.gates:
        files.setdefault(str(gate["checkpoint"]), []).append(gate)
    for file, gates in files.items():
        name = f"{escaped(file)}: " if len(files) > 1 else ""
        forms: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for gate in gates[:_MOST_GATES]:
            forms.setdefault((str(gate["form"]), _template(str(gate["layer"]))), []).append(gate)
        for (form, template), alike in forms.items():
            where = escaped(template) if "*" in template else "layer"
            yield f"{name}{where}, taken for: {escaped(form)}", None
            yield "", _weights(alike)
            yield "", _parameters(alike)
        if len(gates) > _MOST_GATES:
            yield f"{name}and {len(gates) - _MOST_GATES} more gates (--format json has them)", None
    if any(gate["probe"] for gate in report.gates):
        yield _legend(report.gates, report.options.get("seed", 0)), None


def _legend(gates: Sequence[Mapping[str, Any]], seed: int) -> str:
    count = next(gate["probe"]["num_inputs"] for gate in gates if gate["probe"])
    lines = [
        f"Each branch: its mean weight over {count} standard normal inputs (seed {seed}).",
        "Entropy: 1 is even, 0 one branch alone. Flat: weights that cannot learn any more.",
    ]
    names = {branch["name"] for gate in gates if gate["probe"] for branch in gate["probe"]["branches"]}
    if names & set(_SHORT):
        lines.append("cmp, sel, win: the compressed, selected and sliding branch.")
    return "\n".join(lines)


def _weights(gates: Sequence[Mapping[str, Any]]) -> Table:
    probes = [gate["probe"] for gate in gates if gate["probe"]]
    branches = [branch["name"] for branch in probes[0]["branches"]] if probes else []
    has_drift = any(gate["drift"] for gate in gates)
    table = _table()
    table.add_column("gate", overflow="fold", max_width=_WIDEST_LAYER)
    for name in branches[:_MOST_BRANCHES]:
        own = name if name.isdigit() else f"[{escaped(name)}]"
        table.add_column(_SHORT.get(name, own), justify="right", no_wrap=True)
    for name in ("entropy", "flat", *(("drift",) if has_drift else ())):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for gate in gates:
        probe = gate["probe"]
        cells = [_label(gate)]
        cells += [f"{branch['mean']:.3f}" for branch in probe["branches"][:_MOST_BRANCHES]] if probe else []
        cells += ["-"] * (min(len(branches), _MOST_BRANCHES) - len(cells) + 1)
        cells += [f"{probe['entropy']:.2f}", f"{probe['flat']:.0%}"] if probe else ["-", "-"]
        cells += [short_number(gate["drift"]["relative"]) if gate["drift"] else "-"] if has_drift else []
        table.add_row(*(Text(cell) for cell in cells), Text(_verdict(gate)))
    return table


def _parameters(gates: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    table.add_column("gate", overflow="fold", max_width=_WIDEST_LAYER)
    for part in ("weight", "bias"):
        for name in (f"{part} mean", "std", "norm", "zeros"):
            table.add_column(name, justify="right")
    for gate in gates:
        cells = [cell for part in (gate["weight"], gate["bias"]) for cell in _figures(part)]
        table.add_row(Text(_label(gate)), *(Text(cell) for cell in cells))
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True)


def _figures(part: Mapping[str, Any] | None) -> list[str]:
    if part is None:
        return ["-"] * 4
    cells = [*(short_number(part[name]) for name in ("mean", "std", "norm")), f"{part['zeros']:.0%}"]
    return [cells[0], cells[1], f"{short_count(part['num_bad'])} bad", cells[3]] if part["num_bad"] else cells


def _verdict(gate: Mapping[str, Any]) -> str:
    """In words, with every illness; why it is not known where it was not tried."""
    if gate["illnesses"]:
        return escaped(", ".join(gate["illnesses"]))
    return f"not probed: {escaped(gate['unprobed'])}" if gate["unprobed"] else escaped(str(gate["verdict"]))


def _template(layer: str) -> str:
    """The layer's name with a star for its first number."""
    return _NUMBER.sub("*", layer, count=1)


def _label(gate: Mapping[str, Any]) -> str:
    """The number that the heading has a star for; the whole name where there is none."""
    number = _NUMBER.search(str(gate["layer"]))
    return number[0] if number else escaped(str(gate["layer"]))
