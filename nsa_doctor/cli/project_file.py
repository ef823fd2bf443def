"""`nsa-doctor.toml`, or `[tool.nsa-doctor]` of a pyproject.toml: what the command lines of a project need not say."""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.like import CONFIG_FILE, HUGGING_FACE
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import REFUSALS, shown, why

FILE = "nsa-doctor.toml"
_PYPROJECT = "pyproject.toml"
_TABLE = "nsa-doctor"
_MOST_BYTES = 1 << 20
_FILES = ("config", "inputs", "policy")  # values that may name a file, which lies beside this one


@dataclass(frozen=True)
class ProjectFile:
    """What was read: the options by the names that commands have for them, and folders that hold the modules."""

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file as a sentence names it: its name alone where it lies in the current folder."""
        return _name(self.path)


def find_project_file(start: Path) -> ProjectFile | None:
    """The nearest one in this folder or above it, up to the root of the repository; raises UsageError for a bad one.

    Folders above that anybody may write to are passed over.
    """
    for folder in (start, *start.parents):
        if folder != start and _is_public(folder):
            continue
        for read in (_own_file, _table_of_pyproject):
            found = read(folder)
            if found is not None:
                return found
        if (folder / ".git").exists():
            return None
    return None


def _is_public(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _own_file(folder: Path) -> ProjectFile | None:
    path = folder / FILE
    if not _is_there(path):
        return None
    text = _text(path)
    if not text.strip():
        raise UsageError(f"{_name(path)}: is empty; `nsa-doctor init --overwrite` writes one")
    return _checked(path, _parsed(path, text))


def _table_of_pyproject(folder: Path) -> ProjectFile | None:
    path = folder / _PYPROJECT
    if not path.is_file():
        return None
    text = _text(path)
    if _TABLE not in text:  # whatever else it holds is not for us to judge
        return None
    tools = _parsed(path, text).get("tool")
    table = tools.get(_TABLE) if isinstance(tools, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise UsageError(f"{_name(path)}: tool.{_TABLE} must be a table, got {_kind(table)}")
    return _checked(path, table)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _name(path: Path) -> str:
    try:
        return path.name if path.parent == Path.cwd() else escaped(shown(path))
    except OSError:
        return escaped(shown(path))


def _text(path: Path) -> str:
    name = _name(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{name}: is no file")
            content = file.read(_MOST_BYTES + 1)
    except IsADirectoryError as error:
        raise UsageError(f"{name}: is a folder, and must be a file") from error
    except REFUSALS as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{name}: cannot be read: {why(error)}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{name}: is larger than {_MOST_BYTES >> 20} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is no text in UTF-8: byte {error.start} is none") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{_name(path)}: is not TOML: {escaped(str(error))}") from error
    except RecursionError as error:
        raise UsageError(f"{_name(path)}: is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise UsageError(f"{_name(path)}: is not TOML: {escaped(str(error))}") from error


def _checked(path: Path, table: Mapping[str, Any]) -> ProjectFile:
    from nsa.strict import ConfigError
    from nsa_doctor.cli.project_settings import ProjectSettings

    try:
        settings = ProjectSettings(**{key.replace("-", "_"): _plain(value) for key, value in table.items()})
        folders = tuple(str(_folder(path, each)) for each in settings.path)
    except ConfigError as error:
        raise UsageError(f"{_name(path)}: {error}") from error
    return ProjectFile(path=path, options=_options(settings.options(), path.parent), folders=folders)


def _plain(value: Any) -> Any:
    """A list as a tuple, which is what strict models take; a whole number of seconds stays one."""
    return tuple(value) if isinstance(value, list) else value


def _folder(path: Path, name: str) -> Path:
    folder = path.parent / name
    if not folder.is_dir():
        raise UsageError(f"{_name(path)}: path names {escaped(name)!r}, and there is no such folder beside it")
    return folder.resolve()


def _options(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options, with files named as they are found from the current folder."""
    found = {
        name: str(folder / value) if name in _FILES and (folder / str(value)).is_file() else value
        for name, value in options.items()
    }
    subject = str(options.get("subject", ""))
    described = folder / subject.removeprefix(HUGGING_FACE)
    if subject.startswith(HUGGING_FACE) and (described.is_file() or (described / CONFIG_FILE).is_file()):
        found["subject"] = f"{HUGGING_FACE}{os.path.relpath(described)}"
    return found


def _kind(value: object) -> str:
    return f"{type(value).__name__}"
