"""Has modules imported from other text than their files hold: the files, and how they are found, stay as they are."""

import json
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from os.path import realpath
from pathlib import Path
from types import CodeType
from typing import ClassVar

_FILE = "replaced.json"


class Replaced:
    """`texts` by file, of this process: another interpreter that imports the same has to be given them."""

    texts: ClassVar[Mapping[str, str]] = {}


def replace_sources(texts: Mapping[str, str]) -> None:
    """From now on whatever loads one of these files, in whichever way, gets the text in its place.

    For a process that ends with its subject, and that has not imported them yet.
    """
    if not texts:
        return
    Replaced.texts = {realpath(path): text for path, text in texts.items()}
    as_written = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        text = Replaced.texts.get(realpath(path))
        if text is None:
            return as_written(loader, name)
        return loader.source_to_code(text.encode(), path)  # no .pyc, read or written

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def hand_over(folder: str) -> None:
    """Write what is replaced here to a folder, for an interpreter that `take_over` is called in."""
    (Path(folder) / _FILE).write_text(json.dumps(dict(Replaced.texts)), encoding="utf-8")


def take_over(folder: str) -> None:
    """Replace what is replaced in the process that wrote to this folder."""
    replace_sources(json.loads((Path(folder) / _FILE).read_text(encoding="utf-8")))
