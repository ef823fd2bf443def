"""`nsa-doctor render`: a report that was written earlier, perhaps elsewhere, in another format."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import completion, options
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.writing import check_writable, is_terminal, require_not_read, say, write_whole
from nsa_doctor.render.formats import FORMATS, render_as
from nsa_doctor.render.reading import STANDARD_INPUT, UnreadableReportError, read_report


def render(
    file: Annotated[str | None, typer.Argument(help="A report.json, or - for standard input.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(FORMATS)}; else what the name of --output says.", autocompletion=completion.OF_FORMATS
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file in place of standard output.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of report.json.")] = False,
) -> int:
    """Show a report.json again, or in another format.

    For example `nsa-doctor render report.json --to md`; exits with 0 if it could.

    The exit code says nothing of the report's decision.
    """
    if schema:
        if file is not None or to is not None:
            raise UsageError("--schema prints the schema and renders nothing; leave FILE and --to out")
        if output is not None:
            check_writable(output)
        from nsa_doctor.render.report_format.document import json_schema

        _put(json_schema(), output)
        return 0
    if file is None:
        raise UsageError("FILE is missing: name a report.json, or - for standard input")
    form = options.report_format(to, output, option="--to")
    if output is not None:
        _check(output, file, form)
    try:
        report = read_report(file)
    except UnreadableReportError as error:
        raise UsageError(str(error)) from error
    if form == "terminal" and output is None:
        from nsa_doctor.render import terminal

        _put(terminal.render(report, colour=is_terminal(sys.stdout)), None)
    else:
        _put(render_as(report, form), output)
    return 0


def _check(output: Path, file: str, form: str) -> None:
    """Refuse to lose the report to a picture of it."""
    check_writable(output)
    if form != "json" and file != STANDARD_INPUT:
        require_not_read(output, [file], "the report itself")


def _put(text: str, output: Path | None) -> None:
    if output is None:
        say(text, sys.stdout)
    else:
        write_whole(output, text)
