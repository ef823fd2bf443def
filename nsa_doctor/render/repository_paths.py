"""Where a file stands in the repository that was examined, as other tools name files."""

from collections.abc import Mapping
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import Place

_SAFE = "/:@!$'()*+,;=~-._"  # what a path in a URI may hold as it is


def line_of(place: Place) -> int:
    """The line, or 0 where no line of a file is known; code from a string has no file."""
    return place.line if 0 < place.line < 2**31 and is_file(place.file) else 0


def is_file(name: str) -> bool:
    """Whether this is the name of a file, not `<string>` or nothing."""
    return bool(name) and not name.startswith("<")


def in_repository(file: str, report: Report) -> str | None:
    """The file's path below the repository, with `/`; None where it stands elsewhere or nothing is known."""
    root = report.environment.get("repository")
    path = _path(file)
    if not path.is_absolute():
        return path.as_posix() if ".." not in path.parts else None
    if not root or not path.is_relative_to(base := _path(str(root))) or ".." in path.parts:
        return None
    return path.relative_to(base).as_posix()


def uri(path: str) -> str:
    """A path as a relative reference: nothing in it can be taken for a scheme, a query or an escape."""
    first, slash, rest = path.partition("/")
    head = quote(first, safe=_SAFE.replace(":", ""), errors="replace")
    return head + slash + quote(rest, safe=_SAFE, errors="replace")


def uri_elsewhere(file: str) -> str:
    """`file:///…` of a path outside the repository; of a relative one, a reference."""
    posix = _path(file).as_posix()
    if not _path(file).is_absolute():
        return uri(posix)
    return f"file://{'' if posix.startswith('/') else '/'}{quote(posix, safe=_SAFE, errors='replace')}"


def subjects_file(report: Report) -> str:
    """The file that defines the subject, for what is not in any line; empty when it is not known."""
    identity: Mapping[str, Any] = report.subject.get("identity", {})
    file = str(identity.get("file", ""))
    return file if is_file(file) else ""


def _path(file: str) -> PurePath:
    return PureWindowsPath(file) if PureWindowsPath(file).drive else PurePosixPath(file)
