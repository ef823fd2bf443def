"""Where processes that are started meanwhile look for modules: where this one does."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


@contextmanager
def paths_inherited() -> Iterator[None]:
    """Child processes look for modules where this process does."""
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    with patch.dict(os.environ, PYTHONPATH=path):
        yield


@contextmanager
def looked_in_first(folders: Sequence[str]) -> Iterator[None]:
    """Modules are looked for in these folders first, in this process and in its children."""
    before, sys.path[:0] = list(sys.path), folders
    kept = os.environ.get("PYTHONPATH")
    path = os.pathsep.join((*folders, *((kept,) if kept else ())))
    try:
        with patch.dict(os.environ, PYTHONPATH=path):
            yield
    finally:
        sys.path[:] = before
