"""Kills runs with SIGKILL at random moments, saves included, resumes them, and compares with a run never interrupted.

    python -m tests.kill_test --kills 100

Prints a tally; exit code 1 when a loss or a weight differs in a single bit, or a run could not go on.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from nsa.config import RunConfig, parse_config
from nsa.train import results, train
from nsa.train.table import read_table
from tests.nsa.train.chain import VOCABULARY, open_chain

MODEL = {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_groups": 1, "d_k": 8, "d_v": 8, "vocab_size": VOCABULARY}
NSA = {"l": 4, "d": 2, "l_sel": 4, "n_sel": 3, "w": 6, "phi": "mlp"}
TRAIN = {"steps": 30, "seq_len": 32, "batch_size": 4, "lr": 1e-2, "warmup_steps": 4, "weight_decay": 0.1}
OFTEN = {"save_every": 1, "eval_every": 7, "eval_batches": 2, "log_every": 5, "sample_tokens": 4, "grad_clip": 1.0}
LONGEST_LIFE_SECONDS = 120.0
SAME = ("step", "loss", "lr", "grad_norm", "tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=TRAIN["steps"], help="of each run")
    asked = parser.parse_args()
    TRAIN["steps"] = asked.steps
    chance, tally, runs = random.Random(asked.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        began = time.monotonic()
        if wait_for(live(whole)) != 0:
            print((whole.parent / "whole.log").read_text())
            return 1
        seconds = time.monotonic() - began
        while tally.total() < asked.kills:
            folder = Path(place) / f"run{runs}"
            problem = kill_until_done(folder, chance, seconds, asked.kills, tally) or difference(whole, folder)
            if problem:
                print(f"run {runs}: {problem}")
                print(folder.with_suffix(".log").read_text())
                return 1
            runs += 1
            shutil.rmtree(folder)
    counts = ", ".join(f"{count} {when}" for when, count in sorted(tally.items()))
    print(f"{tally.total()} kills ({counts}) in {runs} runs: every loss and every weight as if never interrupted")
    return 0


def kill_until_done(folder: Path, chance: random.Random, seconds: float, kills: int, tally: Counter[str]) -> str:
    """Kill, resume, and kill again until a life ends of itself; what went wrong, or nothing."""
    while True:
        child = live(folder)
        if tally.total() < kills:
            wait = until_saving(folder, chance) if chance.random() < 0.5 else until_later(chance.random() * seconds)
            if wait(child):
                os.kill(child, signal.SIGKILL)
                code = wait_for(child)
                if code == -signal.SIGKILL:
                    tally[moment(folder)] += 1
                elif code:  # 0 when it was quicker
                    return f"a life ended with exit code {code}"
                continue
        code = wait_for(child)
        return "" if code == 0 else f"a life ended with exit code {code}"


def live(folder: Path) -> int:
    """Another process that trains, from the newest checkpoint if there is one; its id."""
    child = os.fork()
    if child:
        return child
    log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        torch.set_num_threads(1)
        results.draw = lambda *_: None  # a second each time, and nothing is compared with it
        train(configuration(folder), resume="auto", loader=open_chain)
        code = 0
    finally:
        sys.excepthook(*sys.exc_info()) if code else None
        sys.stdout.flush()
        os._exit(code)


def configuration(folder: Path) -> RunConfig:
    section = TRAIN | OFTEN | {"out_dir": str(folder)}
    return parse_config({"model": MODEL, "nsa": NSA, "train": section, "runtime": {"device": "cpu"}})


def until_later(seconds: float) -> Callable[[int], bool]:
    """Waits so long; False when the process ended before."""

    def wait(child: int) -> bool:
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            if has_ended(child):
                return False
            time.sleep(0.001)
        return True

    return wait


def until_saving(folder: Path, chance: random.Random) -> Callable[[int], bool]:
    """Waits for one of its next saves, and a moment into it."""
    saves, into = chance.randrange(1, 12), chance.random() * 0.02

    def wait(child: int) -> bool:
        seen: set[str] = set()
        while not has_ended(child):
            seen |= unfinished(folder)
            if len(seen) >= saves:
                time.sleep(into)
                return not has_ended(child)
        return False

    return wait


def unfinished(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder / "checkpoints") if name.startswith(".step_")}
    except OSError:
        return set()


def moment(folder: Path) -> str:
    """Where a run stood that was just killed."""
    if unfinished(folder):
        return "during a save"
    if not (folder / "checkpoints").is_dir():
        return "before the first checkpoint"
    return "between saves"


def has_ended(child: int) -> bool:
    """Without taking its exit code away from `wait_for`."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for(child: int) -> int:
    give_up = time.monotonic() + LONGEST_LIFE_SECONDS
    while not has_ended(child):
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def difference(whole: Path, parts: Path) -> str:
    """What is not the same to the last bit, or nothing."""
    tables = [[[row[name] for name in SAME] for row in read_table(each / "training.csv")] for each in (whole, parts)]
    if tables[0] != tables[1]:
        return "training.csv differs"
    for name in ("model.safetensors", "model.pt", "evaluations.csv", "gates.csv"):
        if (whole / name).read_bytes() != (parts / name).read_bytes():
            return f"{name} differs"
    return ""


if __name__ == "__main__":
    sys.exit(main())
