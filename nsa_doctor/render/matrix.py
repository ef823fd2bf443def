"""A matrix of models and properties as text: for a terminal, as Markdown, as one page of HTML."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from nsa_doctor.core.conformance import RED, STATUSES, Cell

_SHORT = {"holds": "ok", "does not apply": "–", "cannot be built": "not built"}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.1rem .5rem;text-align:left}
.red{background:#fbd5d5}.ok{background:#e3f4e3}pre{background:#f4f4f4;padding:.7rem;overflow-x:auto}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}.red{background:#6b1f1f}.ok{background:#1d3b1d}
pre{background:#222}a{color:#8ab4f8}}"""


def terminal(cells: Sequence[Cell], versions: Mapping[str, str]) -> str:
    """How many cells ended how, and every red one with the line that measures it again."""
    lines = [f"{_title(versions)}: {_counts(cells)}", ""]
    for cell in _red(cells):
        lines += [f"{cell.model} {cell.property_name} {cell.status}: {cell.text}", f"  reproduce  {cell.command}"]
    return "\n".join(lines) + "\n"


def markdown(cells: Sequence[Cell], versions: Mapping[str, str], properties: Sequence[str]) -> str:
    """A table, and below it what each red cell and each that could not be measured says."""
    lines = [f"# {_title(versions)}", "", f"{_counts(cells)}.", ""]
    lines += [f"| type | {' | '.join(properties)} |", f"|---|{'---|' * len(properties)}"]
    for name, row in _rows(cells):
        words = [_bold(row[each]) if each in row else "" for each in properties]
        lines.append(f"| {name} | {' | '.join(words)} |")
    lines += ["", "## Red cells", ""]
    for cell in _red(cells):
        lines += [f"- **{_name(cell)} {cell.property_name}** {cell.status}: {_plain(cell.text)}", f"  `{cell.command}`"]
    lines += ["", "## Not measured", ""]
    lines += [f"- {text}: {', '.join(names)}" for text, names in _reasons(cells).items()]
    return "\n".join(lines) + "\n"


def html(cells: Sequence[Cell], versions: Mapping[str, str], properties: Sequence[str]) -> str:
    """One page; red cells lead to what they say and to the script that shows it."""
    head = "".join(f"<th>{escape(each)}</th>" for each in properties)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(_data(row.get(each)) for each in properties)}</tr>"
        for name, row in _rows(cells)
    )
    title = escape(_title(versions))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(_counts(cells))}</p><table><tr><th>type</th>{head}</tr>{rows}</table>"
        f"<h2>Red cells</h2>{''.join(map(_detail, _red(cells)))}</html>\n"
    )


def _title(versions: Mapping[str, str]) -> str:
    return "Causal language models of " + " with ".join(f"{name} {each}" for name, each in versions.items())


def _counts(cells: Sequence[Cell]) -> str:
    counted = Counter(cell.status for cell in cells)
    ended = ", ".join(f"{counted[status]} {status}" for status in STATUSES if counted[status])
    return f"{len({cell.model for cell in cells})} types, {len(cells)} cells: {ended}"


def _rows(cells: Sequence[Cell]) -> Iterator[tuple[str, dict[str, Cell]]]:
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(_name(cell), {})[cell.property_name] = cell
    yield from rows.items()


def _red(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.status in RED]


def _reasons(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Why cells were not measured, each reason once."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.status == "cannot be built":
            names = reasons.setdefault(_plain(cell.text), [])
            names += [_name(cell)] if _name(cell) not in names else []
        elif cell.status in ("refuses", "does not apply"):
            reasons.setdefault(f"{cell.property_name}: {_plain(cell.text)}", []).append(_name(cell))
    return reasons


def _name(cell: Cell) -> str:
    return cell.model.removeprefix("hf:")


def _bold(cell: Cell) -> str:
    word = _SHORT.get(cell.status, cell.status)
    return f"**{word}**" if cell.is_red else word


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _data(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    word = escape(_SHORT.get(cell.status, cell.status))
    if cell.is_red:
        return f'<td class="red"><a href="#{escape(_anchor(cell))}">{word}</a></td>'
    kind = ' class="ok"' if cell.status == "holds" else ""
    return f'<td{kind} title="{escape(cell.text)}">{word}</td>'


def _anchor(cell: Cell) -> str:
    return f"{_name(cell)}-{cell.property_name}"


def _detail(cell: Cell) -> str:
    name = escape(f"{_name(cell)} {cell.property_name}")
    shown = f"<details><summary>plain torch</summary><pre>{escape(cell.script)}</pre></details>" if cell.script else ""
    text = escape(f"{cell.status}: {cell.text}")
    return f'<h3 id="{escape(_anchor(cell))}">{name}</h3><p>{text}</p><pre>{escape(cell.command)}</pre>{shown}'
