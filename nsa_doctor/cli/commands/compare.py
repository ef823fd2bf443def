"""`nsa-doctor compare`: a report against an earlier one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import completion, options
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import Report
from nsa_doctor.core.writing import check_writable, require_not_read, say, write_whole
from nsa_doctor.render.compared import FORMATS, render_comparison
from nsa_doctor.render.reading import STANDARD_INPUT, UnreadableReportError, read_report


def compare(
    old: Annotated[str, typer.Argument(help="The earlier report.json.")],
    new: Annotated[str, typer.Argument(help="The later report.json, of the same subject; - for standard input.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"{', '.join(FORMATS)}; else what the name of --output says.",
            autocompletion=completion.words(FORMATS),
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file in place of standard output.")] = None,
) -> int:
    """Compare two reports: what is new, fixed, still there, slower.

    For example `nsa-doctor compare main.json branch.json --format md`.

    Exits with 0 if nothing is worse, 1 for a new finding or a new NO-GO, 3 where not all was looked at again.
    """
    chosen = options.report_format(form, output, allowed=tuple(FORMATS))
    if chosen not in FORMATS:
        raise UsageError(f"--output {output}: a comparison is written as {', '.join(FORMATS)}; say --format too")
    if old == new == STANDARD_INPUT:
        raise UsageError("OLD and NEW are both standard input; name one of them")
    if output is not None:
        check_writable(output)
        require_not_read(output, [each for each in (old, new) if each != STANDARD_INPUT], "a report that is compared")
    from nsa_doctor.policy.comparison import compare_reports

    comparison = compare_reports(_read(old), _read(new), old, new)
    text = render_comparison(comparison, chosen)
    if output is None:
        say(text, sys.stdout)
    else:
        write_whole(output, text)
    return comparison.outcome.exit_code


def _read(file: str) -> Report:
    try:
        return read_report(file)
    except UnreadableReportError as error:
        raise UsageError(str(error)) from error
