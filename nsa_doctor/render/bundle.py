"""A report in every form a team looks at, written to one folder: each file whole, and none before all are ready."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nsa_doctor.core.finding import Report
from nsa_doctor.core.writing import REFUSALS, CannotWriteError, require_no_folder, shown, why
from nsa_doctor.render.formats import render_as

FILES: Mapping[str, str] = {  # name: format
    "report.json": "json",
    "report.html": "html",
    "report.md": "md",
    "junit.xml": "junit",
    "report.sarif": "sarif",
}


def check_folder(folder: Path) -> None:
    """Find out before the work starts whether a bundle can be written there; raises CannotWriteError.

    A folder that is not there yet is made for it and removed again: no folder stays behind where no work is done.
    """
    try:
        missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                require_no_folder(folder / name, "a report belongs there; give another --output")
            with tempfile.TemporaryDirectory(dir=folder, prefix=".nsa-doctor."):
                pass
        finally:
            for each in missing:
                with suppress(OSError):  # it was not made, or something else lies in it by now
                    each.rmdir()
    except CannotWriteError:
        raise
    except REFUSALS as error:
        raise CannotWriteError(
            f"{shown(folder)}: cannot be written: {why(error)}; give a folder you own with --output"
        ) from error


def write_bundle(folder: Path, report: Report) -> list[Path]:
    """The files written. All are written to disk under other names first: a full disk leaves the old ones as they were.

    Raises CannotWriteError.
    """
    texts = {name: render_as(report, form) for name, form in FILES.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".nsa-doctor.") as temporary:
            for name, text in texts.items():
                _write_to_disk(Path(temporary) / name, text)
            for name in texts:
                (Path(temporary) / name).replace(folder / name)
    except REFUSALS as error:
        raise CannotWriteError(f"{shown(folder)}: the report cannot be written: {why(error)}") from error
    return [folder / name for name in texts]


def _write_to_disk(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
