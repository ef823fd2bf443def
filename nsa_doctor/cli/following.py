"""What a person who follows a run sees on standard error: a line that renews itself on a terminal, else plain lines."""

import shutil
import sys
import time

from nsa_doctor.artifacts.training_run.status import Status
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import is_terminal, say

_SECONDS_BETWEEN_LINES = 30.0


class FollowingScreen:
    """The live line, what is waited for, and findings that stay."""

    def __init__(self, quiet: bool) -> None:
        self._is_quiet = quiet
        self._is_terminal = is_terminal(sys.stderr)
        self._has_line = False
        self._last, self._said_at = "", 0.0

    def waiting(self, sentence: str) -> None:
        """There is nothing to read yet."""
        self._renew(f"waiting: {sentence}", is_worth=f"waiting: {sentence}" != self._last)

    def status(self, status: Status) -> None:
        """How the run stands."""
        is_late = time.monotonic() - self._said_at >= _SECONDS_BETWEEN_LINES
        self._renew(str(status), is_worth=not self._last or self._last.startswith("waiting") or is_late)

    def found(self, finding: Finding) -> None:
        """A line that stays."""
        self.clear()
        place = f" ({finding.where})" if finding.where.file or finding.where.module_text else ""
        self._write(f"{escaped(f'{finding.code} {finding.message}{place}')}\n")

    def clear(self) -> None:
        """Take the live line away."""
        if self._has_line:
            self._write("\r" + " " * (_width() - 1) + "\r")
            self._has_line = False

    def _renew(self, text: str, *, is_worth: bool) -> None:
        if self._is_terminal:
            width = _width() - 1
            self._write(f"\r{escaped(text)[:width]:<{width}}")
            self._has_line = True
        elif is_worth and text != self._last:
            self._write(f"{escaped(text)}\n")
        else:
            return
        self._last, self._said_at = text, time.monotonic()

    def _write(self, text: str) -> None:
        if not self._is_quiet:
            say(text, sys.stderr)


def _width() -> int:
    return shutil.get_terminal_size().columns
