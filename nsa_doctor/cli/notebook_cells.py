"""Cells of a notebook by their numbers, as IPython has them in tracebacks, in place of files that nobody can open."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from nsa_doctor.core.errors import Caught, attempt


def cell_names(files: Iterable[str]) -> Mapping[str, str]:
    """`cell In[3]` for each of the files that is a cell of the notebook which this process runs."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return {file: name for file in files if file and (name := _name(shell, file))}


def in_cells(text: str, names: Mapping[str, str]) -> str:
    """The text with cells in place of their files, whole or by their last name."""
    for file, name in names.items():
        text = text.replace(file, name).replace(PurePath(file).name, name)
    return text


def _name(shell: Any, file: str) -> str:
    """Of IPython's label and name of a cell, ("Cell", "In[3]"); "" where it has none or is too old to say."""
    named = attempt(lambda: shell.compile.format_code_name(file))
    return "" if isinstance(named, Caught) or named is None else " ".join(map(str, named)).replace("Cell", "cell")
