"""Where a command's report goes, and the exit code it ends with."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import ReportOptions
from nsa_doctor.core import signals
from nsa_doctor.core.finding import Report
from nsa_doctor.core.writing import CannotWriteError, check_writable, is_terminal, require_not_read, say, write_whole

ENDED_EARLY = -1  # the report was delivered, and the exit code is the signal's


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How a report is to be printed and written."""

    form: str
    output: Path | None
    traceback: bool
    quiet: bool

    @classmethod
    def asked(cls, report: ReportOptions, inputs: Iterable[str | Path] = ()) -> Self:
        """Check the options before the work starts: what cannot be written is lost after it, and so is an input."""
        form = options.report_format(report.form, report.output)
        if report.output is not None:
            check_writable(report.output)
            require_not_read(report.output, inputs, "what is examined")
        return cls(form=form, output=report.output, traceback=report.traceback, quiet=report.quiet)

    def __call__(self, report: Report) -> int:
        """Print the report, write it to a file when one was named, and give the exit code.

        What cannot be written is printed in its place, and what cannot be printed is still written.
        """
        signals.ignore_signals()
        if self.output is None:
            say(self._rendered(report, self.form, is_terminal(sys.stdout)), sys.stdout)
            return _exit_code(report)
        text, unwritten = self._rendered(report, self.form, False), None
        try:
            write_whole(self.output, text)
        except CannotWriteError as error:
            unwritten = error
        if not self.quiet:
            say(self._rendered(report, "terminal", is_terminal(sys.stdout)), sys.stdout)
        if unwritten is not None:
            if self.quiet or self.form != "terminal":
                say(text, sys.stdout)
            raise unwritten
        return _exit_code(report)

    def _rendered(self, report: Report, form: str, colour: bool) -> str:
        from nsa_doctor.render import terminal
        from nsa_doctor.render.formats import render_as

        if form != "terminal":
            return render_as(report, form)
        return terminal.render(report, colour=colour, traceback=self.traceback)


def deliver_bundle(report: Report, folder: Path, traceback: bool) -> int:
    """Print the report, write it to a folder in every form, and give the exit code.

    Where the folder cannot be written the report is printed as JSON too, of which `render` makes every other form.
    """
    from nsa_doctor.render import terminal
    from nsa_doctor.render.bundle import write_bundle
    from nsa_doctor.render.formats import render_as

    signals.ignore_signals()
    text = terminal.render(report, colour=is_terminal(sys.stdout), traceback=traceback)
    try:
        written = write_bundle(folder, report)
    except CannotWriteError:
        say(text + render_as(report, "json"), sys.stdout)
        raise
    say(f"{text}written to {folder}: {', '.join(path.name for path in written)}\n", sys.stdout)
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    return ENDED_EARLY if report.interrupted else report.decision.exit_code
