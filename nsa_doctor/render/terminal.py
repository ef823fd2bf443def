"""A report for a terminal: table, findings, one closing sentence; 80 columns, readable without colour."""

import io
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from nsa_doctor.core import registry
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.finding import Finding, Report
from nsa_doctor.core.measurement import Measurement
from nsa_doctor.core.policy_verdict import PolicyVerdict
from nsa_doctor.core.text import escaped, from_here
from nsa_doctor.render.fuzz_table import fuzz_not_tried, fuzz_targets
from nsa_doctor.render.gate_tables import gate_tables
from nsa_doctor.render.overview import not_checked, overview
from nsa_doctor.render.summary import conclusion, conditions, is_builtin_example, ordered_findings, subject_line
from nsa_doctor.render.sweep_table import sweep_tables
from nsa_doctor.render.throughput_table import speed_parts
from nsa_doctor.render.verdict import headline, ruling_lines

_LABEL_WIDTH = 11
_YOUR_OWN = "`nsa-doctor init` looks for yours here, `--subject package.module:make` names it"


def render(report: Report, *, colour: bool = False, width: int = 80, traceback: bool = False) -> str:
    """The report as text; `colour` adds styles for a terminal, `traceback` the tracebacks of a subject that raised."""
    console = Console(
        file=io.StringIO(),
        force_terminal=colour,
        force_jupyter=False,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if report.verdict is not None:
        _print_ruling(console, report, report.verdict)
    else:
        for line in _header(report):
            console.print(line)
    _print_tables(console, sweep_tables(report) if report.command == "sweep" else gate_tables(report))
    if report.command != "sweep" and report.verdict is None:
        console.print()
        for line in fuzz_targets(report) if report.command == "fuzz" else overview(report):
            console.print("\n".join(_in_columns(escaped(line), width)), soft_wrap=True)
    if report.throughput:
        console.print()
    for part in speed_parts(report.throughput):
        console.print(part)
    for _, finding in ordered_findings(report):
        console.print()
        _print_finding(console, finding)
    if traceback:
        for text in _tracebacks(report.measurements):
            console.print(f"\n{escaped_lines(text)}", soft_wrap=True)
    console.print()
    for line in _closing(report):
        console.print(line)
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _print_ruling(console: Console, report: Report, policy_verdict: PolicyVerdict) -> None:
    console.print(Text(escaped(headline(report, policy_verdict)), style="bold"))
    console.print()
    for label, text in ruling_lines(report, policy_verdict):
        whole = escaped(from_here(text))
        lines = [whole] if label == "reproduce" else _in_columns(whole, console.width - _LABEL_WIDTH)
        for index, line in enumerate(lines):
            console.print(Text(f"{'' if index else label:<{_LABEL_WIDTH}}{line}"), soft_wrap=True)


def _in_columns(text: str, width: int) -> list[str]:
    """The text in lines; behind columns, which two blanks set apart, it goes on below where it began."""
    start = text.rfind("  ") + 2 if "  " in text else 0
    start = start if start <= width // 2 else 0
    first, *further = wrap(text[start:], width - start, break_on_hyphens=False) or [""]
    return [text[:start] + first, *(" " * start + line for line in further)]


def _print_tables(console: Console, parts: Iterable[tuple[str, Table | None]]) -> None:
    for heading, table in parts:
        console.print()
        if table is None:
            console.print(heading)
        else:
            if heading:
                console.print(heading, style="bold")
            console.print(table)


def escaped_lines(text: str) -> str:
    """Text of several lines with everything a terminal would obey made visible."""
    return "\n".join(escaped(line) for line in text.splitlines())


def _header(report: Report) -> Iterator[str]:
    yield escaped(subject_line(report))
    if is_builtin_example(report):
        yield f"this is the built-in example, not a module of yours: {_YOUR_OWN}"
    if text := conditions(report):
        yield escaped(text)


def _print_finding(console: Console, finding: Finding) -> None:
    """The message wrapped, behind a code that leads to the check's page; then what a reader may copy, a line each."""
    title, code = Text(escaped(f"{finding.code} {finding.message}"), style="bold red"), escaped(finding.code)
    if address := address_of(finding.code):
        title.stylize(Style(link=address), 0, len(code))
    console.print(title)
    where, evidence = finding.where, finding.evidence
    rows = [
        ("module", where.module_text),
        ("line", f"{where.line_text} in {where.function}" if where.file else ""),
        ("library", where.library),
        ("detail", str(evidence.get("detail") or "")),
        ("branches", str(evidence.get("branches") or "").replace(",", ", ")),
        ("control", finding.control),
        ("also", _also(finding)),
        ("reproduce", finding.repro),
    ]
    rows[2:2] = [
        ("" if index else "input", line) for index, line in enumerate(str(evidence.get("input", "")).split("\n"))
    ]
    for label, text in rows:
        if text:
            console.print(Text(f"  {label:<{_LABEL_WIDTH}}{escaped(from_here(text))}"), soft_wrap=True)


def _also(finding: Finding) -> str:
    """The checks that failed beside it, with their names."""
    known = registry.entries()
    return ", ".join(f"{code} {known[code].manual.name}" if code in known else code for code in finding.also)


def _closing(report: Report) -> Iterator[str]:
    for note in report.remarks:
        yield escaped(f"note: {note}")
    if report.verdict is None:
        for line in fuzz_not_tried(report) if report.command == "fuzz" else not_checked(report):
            yield escaped(line)
    if report.interrupted:
        has_any = report.measurements or report.results
        yield f"interrupted: {'what was measured stands above' if has_any else 'nothing was measured yet'}"
    if report.verdict is not None:
        yield f"{report.decision.value} by policy {escaped(report.verdict.gate)} ({report.seconds:.1f} s)"
        return
    of = f"; this was the built-in example: {_YOUR_OWN}" if is_builtin_example(report) else ""
    yield f"{report.decision.value}: {conclusion(report)}{of} ({report.seconds:.1f} s)"


def _tracebacks(measurements: Sequence[Measurement]) -> Iterator[str]:
    seen = {measurement.trouble.traceback: None for measurement in measurements if measurement.trouble}
    yield from (text for text in seen if text)
