"""Starts the doctor's own child processes: new interpreters, or forks of this process where that was allowed."""

import importlib
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import IO, ClassVar

from nsa_doctor.core.package import PACKAGE_ROOT
from nsa_doctor.isolation.forked import ForkedProcess

AnyProcess = subprocess.Popen[bytes] | ForkedProcess


class Children:
    """`are_forked`: for a process that has imported torch already and has no GPU to share."""

    are_forked: ClassVar[bool] = False


def start_child(
    module: str, words: Sequence[str], files: Collection[int], errors: IO[bytes] | None = None
) -> AnyProcess:
    """A process that runs a module's `main` with these words as its `sys.argv[1:]`, in a session of its own.

    It has these files open, under the same numbers. Its standard error goes to `errors`, by default to a pipe of the
    process; its other standard streams lead nowhere.
    """
    if Children.are_forked:
        return ForkedProcess(lambda: _run(module, words), files, errors)
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, "-P", "-c", _program(module), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if errors is None else errors,
        pass_fds=tuple(files),
        start_new_session=True,
    )


def _run(module: str, words: Sequence[str]) -> None:
    sys.argv[1:] = words
    importlib.import_module(module).main()


def _program(module: str) -> str:
    """It imports this very package, wherever it was imported from, and nothing of the current folder."""
    root = str(PACKAGE_ROOT.parent)
    return (
        f"import sys; root = {root!r}; root in sys.path or sys.path.insert(0, root); from {module} import main; main()"
    )
