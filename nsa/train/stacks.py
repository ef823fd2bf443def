"""Files that say where every thread stands."""

import faulthandler
import threading
import time
from pathlib import Path

from nsa.train.files import create_unique
from nsa.train.internal import numbers_of_threads


def dump_stacks(folder: Path, prefix: str, why: str) -> Path | None:
    """`<prefix>_<seconds since the epoch>.txt` with all stacks, the most recent call first; None where it cannot be.

    Asks no lock of the other threads, so that it works whatever they hang in.
    """
    try:
        path = create_unique(folder, prefix, int(time.time()))
        with path.open("w", encoding="utf-8") as file:
            file.write(f"{why}\n{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n")
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident in numbers_of_threads():
                file.write(f"0x{ident:016x} is {names.get(ident, 'a thread Python does not know')}\n")
            file.write("\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
    except OSError:
        return None
    return path
