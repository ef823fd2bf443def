"""Write the sources of the site: python docs/site_sources.py FOLDER, which `make docs` builds with mkdocs.

The pages of docs/, README and CONTRIBUTING with their links turned to the site's, a page for each check from its
manual, the examples, the API by what the packages export, and a picture of the doctor's rooms by the tests' own table.
"""

import ast
import html
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from nsa_doctor.core import registry
from nsa_doctor.core.families import FAMILIES, family_of
from nsa_doctor.core.registry import Entry
from tests.arrows import ROOMS

ROOT = Path(__file__).parents[1]
PAGES = {  # page of the site: where it is written
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "regressions.md": "regressions/README.md",
    **{
        f"{name}.md": f"docs/{name}.md"
        for name in (
            "attention",
            "benchmarks",
            "ci",
            "conformance",
            "examine",
            "examine_function",
            "examine_hugging_face",
            "hugging_face",
            "own_check",
            "proving",
            "reports",
            "training",
            "verdicts",
        )
    },
}
FILES = ("LICENSE", "action.yml", "docs/report.svg")  # beside the pages, as they are
EXAMPLES = "examples.md"
MESSAGES = ROOT / "docs" / "messages.json"  # tests/planted_messages.py writes it
PICTURE = "architecture.svg"
_LINK = re.compile(r"\[([^]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
_CODE = re.compile(r"(?<![\w`\[/#])([A-Z]{3}\d{3})(?![\w`\]])")
_KINDS = {"Size": "int, 1 or more", "Count": "int, 0 or more", "PositiveFloat": "float above 0"}
_API = {
    "nsa_doctor": "What examines",
    "nsa_doctor.testing": "For authors of checks",
    "nsa": "The model package",
    "nsa.hf": "The model in transformers",
}


def main() -> None:
    """Write them to the folder that is named, which is emptied first."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    write_site(folder)


def write_site(folder: Path) -> None:
    """Every page and every file of the site."""
    (folder / "checks").mkdir(parents=True)
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (folder / name).write_text(linked(turned(text, Path(source).parent)), encoding="utf-8")
    for source in FILES:
        shutil.copy(ROOT / source, folder / Path(source).name)
    entries, messages = registry.entries(), json.loads(MESSAGES.read_text(encoding="utf-8"))
    (folder / "checks" / "index.md").write_text(overview(entries), encoding="utf-8")
    for code, entry in entries.items():
        (folder / "checks" / f"{code}.md").write_text(page(entry, messages.get(code, "")), encoding="utf-8")
    (folder / EXAMPLES).write_text("\n".join(examples()), encoding="utf-8")
    (folder / "api.md").write_text("\n".join(api()), encoding="utf-8")
    (folder / PICTURE).write_text(picture(), encoding="utf-8")
    (folder / "architecture.md").write_text("\n".join(architecture()), encoding="utf-8")


def turned(text: str, home: Path) -> str:
    """Links between files of the repository as links between pages of the site; what has no page is no link there.

    ValueError for a link that leads nowhere.
    """
    sources = {source: name for name, source in PAGES.items()} | {source: Path(source).name for source in FILES}

    def target(match: re.Match[str]) -> str:
        path = (ROOT / home / match[2]).resolve()
        if not path.exists():
            raise ValueError(f"{match[2]} is linked from {home}, and is not there")
        source = str(path.relative_to(ROOT))
        page = EXAMPLES if source.split("/")[0] == "examples" else sources.get(source)
        return match[1] if page is None else f"[{match[1]}]({page}{match[3] or ''})"

    return _LINK.sub(target, text)


def linked(text: str, folder: str = "checks/", own: str = "") -> str:
    """The page with every code of a check, where it is no code or link already, leading to the check's page.

    `folder` is where that lies, from the page; `own` is the check that the page is of.
    """
    known = registry.entries().keys() - {own}
    parts = re.split(r"(?ms)(^```.*?^```|`[^`\n]*`|\]\([^)]*\))", text)

    def link(match: re.Match[str]) -> str:
        return f"[{match[1]}]({folder}{match[1]}.md)" if match[1] in known else match[1]

    return "".join(part if odd % 2 else _CODE.sub(link, part) for odd, part in enumerate(parts))


def overview(entries: Mapping[str, Entry]) -> str:
    """All checks by their families."""
    lines = ["# Checks", "", "`nsa-doctor explain CODE` says the same in a terminal; `nsa-doctor list` lists them.", ""]
    for family, title in FAMILIES.items():
        lines += [f"## {family}: {title}", "", "| check | what it detects |", "|---|---|"]
        for code, entry in entries.items():
            if family_of(code)[0] == family:
                detects = linked(in_a_cell(entry.manual.detects), "")
                lines.append(f"| [{code}]({code}.md) {entry.manual.name} | {detects} |")
        lines.append("")
    return "\n".join(lines)


def page(entry: Entry, message: str) -> str:
    """One check: what, why, how to mend, what it says of a planted fault, faulty and mended code, and when it runs."""
    manual = entry.manual
    detects, matters, fix = (
        linked(capital(text), "", manual.code) for text in (manual.detects, manual.matters, manual.fix)
    )
    lines = [f"# {manual.code} {manual.name}", "", detects, ""]
    lines += ["## Why it matters", "", matters, "", "## How to mend it", "", fix, ""]
    if message:
        said = wrap(f"{manual.code} {message}", 80, break_long_words=False, break_on_hyphens=False)
        lines += ["## What it says", "", "For example, of the fault that its test plants:", "", "```", *said, "```", ""]
    faulty, _, correct = manual.example.partition("# correct\n")
    faulty = faulty.removeprefix("# faulty\n").strip("\n")
    if correct:
        lines += ["## Faulty", "", *block(faulty), "", "## Mended", "", *block(correct.strip("\n")), ""]
    elif manual.example:
        lines += ["## Example", "", *block(manual.example.strip("\n")), ""]
    lines += ["## When it runs", "", "| | |", "|---|---|", *facts(entry), ""]
    if entry.examines in ("module", "function"):
        subject = (
            "my_package.my_module:make" if entry.examines == "module" else "fn:my_package.kernels:attend --like sdpa"
        )
        lines += ["```sh", f"nsa-doctor run --select {manual.code} --subject {subject}", "```", ""]
    return "\n".join(lines)


def facts(entry: Entry) -> Iterator[str]:
    """Rows that say what it examines and under which conditions."""
    yield f"| examines | a {entry.examines} |"
    yield f"| from the profile | `{entry.profile}` |"
    yield f"| in nsa-doctor since | {entry.since} |"
    for title, values in {
        "needs the part": entry.needs,
        "means nothing while these fail": entry.blocked_by,
        "merged into a finding of": entry.explained_by,
        "does not apply to what is declared": entry.unless,
        "is part of the commands too": entry.commands,
    }.items():
        if values:
            words = [f"[{each}]({each}.md)" if each in registry.entries() else f"`{each}`" for each in map(str, values)]
            yield f"| {title} | {', '.join(words)} |"


def block(code: str) -> list[str]:
    """Code as it stands."""
    return ["```python", *code.splitlines(), "```"]


def capital(text: str) -> str:
    """A sentence of a manual, which begins small behind its label."""
    return text if text.startswith("`") or not text[:1].islower() else text[0].upper() + text[1:]


def in_a_cell(text: str) -> str:
    """Text between two bars of a table."""
    return text.replace("|", "\\|")


def examples() -> Iterator[str]:
    """The README of examples, then each file, a notebook by its cells."""
    folder = ROOT / "examples"
    yield re.sub(r"\[([^]]+)\]\([^)]*\)", r"`\1`", (folder / "README.md").read_text(encoding="utf-8"))
    for path in sorted(folder.rglob("*")):
        language = {".py": "python", ".yaml": "yaml", ".toml": "toml"}.get(path.suffix)
        if language is not None and "__pycache__" not in path.parts:
            yield f"\n## {path.relative_to(folder)}\n\n```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```"
        elif path.suffix == ".ipynb":
            yield f"\n## {path.relative_to(folder)}\n\n" + "\n\n".join(cells(path))


def cells(notebook: Path) -> Iterator[str]:
    """What a notebook holds, without outputs; headings of its own are bold, below that of the file."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        yield f"```python\n{text}\n```" if is_code else re.sub(r"(?m)^#+ (.*)$", r"**\1**", text)


def api() -> Iterator[str]:
    """What the packages export, each by the file that defines it; mkdocstrings reads them without importing any."""
    yield "# Python\n\nShapes, units and errors stand with each name: B rows, S tokens, H heads, D the size of a head."
    for package, title in _API.items():
        yield f"\n## {package}: {title}\n"
        for name, module in sorted(exported(package).items()):
            yield f"::: {module}.{name}\n"
            yield from members(module, name)


def members(module: str, name: str) -> Iterator[str]:
    """A table of what mkdocstrings shows nothing of: the fields of a configuration, the values of an enumeration."""
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return
    if any(ast.unparse(base).endswith("Enum") for base in classes[name].bases):
        values = [node for node in classes[name].body if isinstance(node, ast.Assign)]
        yield "| | |\n|---|---|"
        yield from (f"| `{ast.unparse(each.targets[0])}` | `{ast.unparse(each.value)}` |" for each in values)
        yield ""
    elif rows := list(fields(name, classes)):
        yield "| field | type | default | |\n|---|---|---|---|"
        yield from rows
        yield ""


def fields(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Rows of the fields of a configuration, those of its bases first."""
    for base in classes[name].bases:
        if ast.unparse(base) in classes:
            yield from fields(ast.unparse(base), classes)
    for node in classes[name].body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "Field"
        ):
            given = {each.arg: ast.unparse(each.value) for each in node.value.keywords}
            text = ast.literal_eval(given["description"]) if "description" in given else ""
            default = (
                f"`{given['default']}`" if "default" in given else "" if "default_factory" in given else "required"
            )
            kind = _KINDS.get(kind := ast.unparse(node.annotation), in_a_cell(kind))
            yield f"| `{ast.unparse(node.target)}` | `{kind}` | {default} | {in_a_cell(text)} |"


def exported(package: str) -> dict[str, str]:
    """Name and module of what a package lists in `__all__`, by its imports."""
    tree = ast.parse((ROOT.joinpath(*package.split(".")) / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    lists = [ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    return {name: homes[name] for names in lists for name in names}


def architecture() -> Iterator[str]:
    """The picture, and what each room is for."""
    yield "# Architecture\n\nA room of `nsa_doctor` imports from rooms further down alone; `tests/arrows.py` holds the"
    yield "table, and a test fails on any other import. The parent never imports torch; checks run in children.\n"
    yield f"![The rooms of the doctor in layers]({PICTURE})\n"
    for name in (each for row in layers() for each in row):
        yield f"- `{name}`: {purpose(name)}"


def layers() -> list[list[str]]:
    """Rooms by how many others lie below them on the longest way down, the uppermost first."""
    below = {
        name: {each.split(".")[0] for room, targets in ROOMS.items() if room.split(".")[0] == name for each in targets}
        - {name}
        for name in {room.split(".")[0] for room in ROOMS} - {""}
    }

    def depth(name: str) -> int:
        return 1 + max((depth(each) for each in below[name]), default=-1)

    rows: dict[int, list[str]] = {}
    for name in sorted(below):
        rows.setdefault(depth(name), []).append(name)
    return [rows[number] for number in sorted(rows, reverse=True)]


def purpose(name: str) -> str:
    """The sentence at the top of a room."""
    return str(ast.get_docstring(ast.parse((ROOT / "nsa_doctor" / name / "__init__.py").read_text(encoding="utf-8"))))


def picture() -> str:
    """The rooms as boxes, one row a layer; only rows further down are imported from."""
    width, box, gap, step = 920, 44, 12, 68
    rows, parts = layers(), []
    for number, row in enumerate(rows):
        each, y = (width - gap * (len(row) + 1)) / len(row), 10 + number * step
        for index, name in enumerate(row):
            x = gap + index * (each + gap)
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{each:.0f}" height="{box}" rx="8"/>'
                f'<text x="{x + each / 2:.0f}" y="{y + 28}">{html.escape(name)}</text>'
            )
        if number + 1 < len(rows):
            parts.append(f'<path d="M{width / 2:.0f} {y + box + 4} v14 m-5 -6 l5 6 l5 -6"/>')
    height = 10 + len(rows) * step
    style = (
        "rect{fill:#f0f0ec;stroke:#8a8f98}text{font:15px ui-monospace,monospace;text-anchor:middle;fill:#1b1d20}"
        "path{stroke:#8a8f98;stroke-width:2;fill:none}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="The rooms of the doctor in layers"><style>{style}</style>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    main()
