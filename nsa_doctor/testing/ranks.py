"""Two processes that train together over gloo, for checks of several processes; one of them may be made faulty.

A process cannot be two ranks, so each is its own: python -c, with the words torchrun would say.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.isolation.orphans import end_with_parent
from nsa_doctor.testing.training_runs import document_of, live, seen

_LONGEST_SECONDS = 100.0
_FAULTY_AT = 12
_STEPS = 20
_PROGRAM = "import sys; from nsa_doctor.testing.ranks import take_part; take_part(*sys.argv[1:])"


def trained_by_two(fault: str = "", spoil: Callable[[Path], None] = lambda folder: None, **changes: Any) -> RunSubject:
    """A run of two processes. fault: what befalls rank 1 at a step, `fails`, `dies`, `drifts`; or `same rows`."""
    with TemporaryDirectory(prefix="nsa-doctor-") as place:
        folder = Path(place) / "run"
        usual = {"steps": _STEPS, "eval_every": 0, "watchdog_seconds": 60.0}
        runtime = {"compare_ranks_every": 4, **changes.pop("runtime", {})}
        document = document_of(folder, runtime=runtime, **{**usual, **changes})
        port = _free_port()
        with ExitStack() as stack:
            processes = [stack.enter_context(_living(rank, port, document, fault)) for rank in (0, 1)]
            for process in processes:
                process.wait(_LONGEST_SECONDS)
        spoil(folder)
        return seen(folder)


def take_part(parent: str, rank: str, document: str, fault: str) -> None:
    """One of the processes; it ends with its parent."""
    end_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os._exit(1)
    import torch

    from nsa.train import feed, loop
    from nsa.train.failures import OutOfDataError

    torch.set_num_threads(1)
    steps, fetch, after = count(1), feed.Feed.step, loop.Loop._after

    def fetch_or_fail(of: Any) -> Any:
        if rank == "1" and next(steps) == _FAULTY_AT:
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "fails":
                raise OutOfDataError("shard 3 of corpus: cannot be read: No such file or directory")
        return fetch(of)

    def drift(of: Any, step: int) -> None:
        if rank == "1" and fault == "drifts" and step == _FAULTY_AT - 1:
            with torch.no_grad():
                of.machinery.model.norm.weight[2] += 1e-7
        after(of, step)

    def open_unsharded(of: Any, split: str, state: Any) -> Any:
        return of._open(of._config, rank=0, world_size=1, split=split, state=state)

    seams: dict[str, Any] = {"nsa.train.loop.Loop._after": drift}
    if fault == "same rows":
        seams["nsa.train.feed.Feed._open_split"] = open_unsharded
    with redirect_stdout(io.StringIO()), patch.object(feed.Feed, "step", fetch_or_fail):
        live(json.loads(document), seams)


@contextmanager
def _living(rank: int, port: int, document: dict[str, Any], fault: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of the processes, ended and waited for however the block ends."""
    process = _started(rank, port, document, fault)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _started(rank: int, port: int, document: dict[str, Any], fault: str) -> subprocess.Popen[bytes]:
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [f"{name}={value}" for name, value in {**said, "TORCHELASTIC_RUN_ID": "it", "OMP_NUM_THREADS": 1}.items()]
    given = [str(os.getpid()), str(rank), json.dumps(document), fault]
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        ["/usr/bin/env", *words, sys.executable, "-c", _PROGRAM, *given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
