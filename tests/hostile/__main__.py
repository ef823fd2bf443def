"""`python -m tests.hostile [NAME...]`: every file of the corpus through the command line, as a user would give it."""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hostile.case import Case, canary
from tests.hostile.corpus import every_case

_SECONDS = 60.0


def main() -> int:
    """Make, read, and say what is not as it should be; 0 when all is."""
    warnings.simplefilter("ignore")  # of torch, about what is written here
    wanted = sys.argv[1:]
    cases = [case for case in every_case() if not wanted or any(word in case.name for word in wanted)]
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [_made(case, Path(folder) / str(index)) for index, case in enumerate(cases)]
        for case, wrong in zip(cases, pool.map(_read, made), strict=True):
            num_wrong += bool(wrong)
            print("\n".join(f"{case.name}: {what}" for what in wrong), end="\n" * bool(wrong), flush=True)
    print(f"{len(cases)} files, {len(cases) - num_wrong} as they should be")
    return 1 if num_wrong else 0


def _made(case: Case, folder: Path) -> tuple[Case, Path, str]:
    folder.mkdir()
    return case, folder, str(case.make(folder))


def _read(made: tuple[Case, Path, str]) -> list[str]:
    case, folder, path = made
    if "\0" in path:  # which no command line holds
        return []
    start = time.monotonic()
    command = [sys.executable, "-m", "nsa_doctor", "gate-stats", "--quiet", "--", path]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [f"hangs for {_SECONDS:g} s"]
    wrong = [*complaints(case, folder, done.returncode, done.stdout.decode(), done.stderr.decode())]
    seconds = time.monotonic() - start
    return [*wrong, f"takes {seconds:.0f} s"] if seconds > _SECONDS / 2 else wrong


def complaints(case: Case, folder: Path, code: int, output: str, error: str) -> Iterator[str]:
    """What is wrong with how the command ended."""
    if canary(folder).exists():
        yield "the file's code was executed"
    if code not in case.codes:
        yield f"exit code {code}, not {' or '.join(map(str, sorted(case.codes)))}: {error or output}"
    if "Traceback" in output + error:
        yield "a traceback"
    if code == 2 and (len(error.splitlines()) != 1 or output):
        yield f"{len(error.splitlines())} lines on standard error, and {len(output)} characters beside them"
    if any(not character.isprintable() and character != "\n" for character in output + error):
        yield "a character that a terminal obeys"


if __name__ == "__main__":
    sys.exit(main())
