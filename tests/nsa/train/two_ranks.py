"""Runs of two processes each, or three, forked from one that has imported torch; prints what became of them as JSON.

python -m tests.nsa.train.two_ranks FOLDER
"""

import json
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

import torch

from nsa.config import parse_config
from nsa.train import TrainError, results, train
from nsa.train.loop import Loop
from tests.nsa.train.chain import open_chain
from tests.nsa.train.conftest import MODEL, NSA, TRAIN

LONGEST_SECONDS = 60.0


def die(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def stop(number):
    if number == 3:
        signal.raise_signal(signal.SIGTERM)  # to this thread: another may hear `os.kill` a step later


def fault_of(name, rank):
    """What goes wrong on rank 1 alone."""
    if rank != 1:
        return {}
    faults = {"fails": {"breaks_at": 3}, "stopped": {"wait": stop}}
    return {"wait": die} if name.startswith("dies") else faults.get(name, {})


def drift(loop, step, after):
    """Rank 1 changes a parameter after step 3."""
    if step == 3 and loop.world.rank == 1:
        with torch.no_grad():
            loop.machinery.model.norm.weight[2] += 1e-7
    after(loop, step)


QUIET = {"eval_batches": 0, "log_every": 6}
SHARDED = {"runtime": {"distributed": "fsdp2"}, "save_every": 3}
SCENARIOS = {
    "ddp": {"runtime": {"distributed": "ddp", "compare_ranks_every": 1}},
    "fsdp2": SHARDED,
    "context": {"runtime": {"context_parallel": 2, "compare_ranks_every": 1}},
    "context-fsdp2": {"runtime": {"distributed": "fsdp2", "context_parallel": 2}, "model": {"n_layers": 2}, **QUIET},
    "context-of-four": {"runtime": {"context_parallel": 2}, **QUIET},
    "alone": {"model": {"branch": "win"}, "batch_size": 1, "accumulate_grad_batches": 4, **QUIET},
    "fails": {**SHARDED, **QUIET},
    "resumed": {**SHARDED, **QUIET},
    "dies": QUIET,
    "dies-of-three": {**QUIET, "batch_size": 3},
    "stopped": QUIET,
    "drifts": {"runtime": {"compare_ranks_every": 2}, **QUIET},
    "too-small": {"batch_size": 1},
}


def main(folder):
    scenarios = {}
    for name in SCENARIOS:
        began = time.monotonic()
        ranks = range({"three": 3, "four": 4}.get(name.rpartition("-")[2], 2))
        children = [start(folder, name, rank, len(ranks), port) for port in [free_port()] for rank in ranks]
        codes = [end(child, began + LONGEST_SECONDS) for child in children]
        scenarios[name] = {
            "codes": codes,
            "seconds": time.monotonic() - began,
            "said": [(folder / f"{name}.{rank}.log").read_text() for rank in ranks],
        }
    print(json.dumps(scenarios))


def start(folder, name, rank, size, port):
    child = os.fork()
    if child:
        return child
    log = os.open(folder / f"{name}.{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": name}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    code = 1
    try:
        code = life(folder, name, rank)
    finally:
        sys.excepthook(*sys.exc_info()) if code == 1 else None
        sys.stdout.flush()
        os._exit(code)


def life(folder, name, rank):
    torch.set_num_threads(1)
    results.draw = lambda *_: None
    if name == "drifts":
        after = Loop._after
        Loop._after = lambda loop, step: drift(loop, step, after)
    resume = str(folder / "fails") if name == "resumed" else None
    loader = partial(open_chain, **fault_of(name, rank))
    try:
        train(configuration(folder / name, SCENARIOS[name]), resume=resume, loader=loader)
    except TrainError as error:
        print(f"SENTENCE {error}")
        return error.code
    return 0


def configuration(folder, changes):
    changes = dict(changes)
    runtime, model = changes.pop("runtime", {}), changes.pop("model", {})
    section = TRAIN | {"out_dir": str(folder), "watchdog_seconds": 20.0} | changes
    return parse_config({"model": MODEL | model, "nsa": NSA, "train": section, "runtime": {"device": "cpu"} | runtime})


def end(child, give_up):
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
