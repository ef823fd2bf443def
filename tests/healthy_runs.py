"""Whether the doctor is silent on healthy training runs: real ones, each in its own process, as a user starts them.

python -m tests.healthy_runs --runs 30
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsa.data.random_words import random_words
from nsa_doctor.artifacts.judging import judged
from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.artifacts.training_run.replay import RecomputeRequest, with_steps_again
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.testing.training_runs import document_of

ROOT = Path(__file__).parents[1]
WIDE = {"dim": 64, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16}
SAVE_EVERY = 11  # near enough for the steps between two checkpoints to be computed again
SHOWCASE = {"dim": 128, "n_heads": 8, "n_kv_groups": 2, "d_k": 16, "d_v": 16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: what differs from a small one on synthetic data, and the step after which it is killed and resumed."""

    name: str
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    killed_after: int | None = None


def case(name: str, **parts: Any) -> Case:
    """Of `train` what is not a section."""
    sections = {key: parts.pop(key) for key in ("model", "data", "runtime", "killed_after") if key in parts}
    return Case(name=name, train=parts, **sections)


TEXT, PERIODIC = {"dataset": "text:prose.txt"}, {"dataset": "text:periodic.txt", "text_by": "line"}
NEEDLE = {"dataset": "needle"}
NO_WARMUP = {"warmup_steps": 0}
CASES = (
    case("plain"),
    case("text", data=TEXT, steps=200),
    case("needle", data=NEEDLE, seq_len=256, steps=150, batch_size=4),
    case("high rate", lr=3e-2, steps=120, **NO_WARMUP),
    case("small rate", lr=2e-4, steps=200),
    case("tiny rate, short", lr=1e-5, steps=30, warmup_steps=0),
    case("long warm-up", lr=2e-4, steps=60, warmup_steps=60),
    case("constant", lr_schedule="constant", lr=5e-3, steps=150),
    case("constant, no warm-up", lr_schedule="constant", lr=2e-3, steps=100, **NO_WARMUP),
    case("floor", lr_floor=2e-3, steps=200),
    case("floor at the peak", lr_floor=1e-2, lr=1e-2, steps=100),
    case("batch of one", batch_size=1, steps=200, lr=5e-3),
    case("one row of 32", batch_size=1, seq_len=32, steps=300, lr=3e-3),
    case("accumulates", accumulate_grad_batches=4, batch_size=2, steps=80),
    case("three layers", model={"n_layers": 3}, steps=120, lr=1e-2),
    case("wide", model=WIDE, seq_len=128, steps=150, lr=5e-3),
    case("showcase", model=SHOWCASE, seq_len=128, steps=200, lr=5e-3),
    case("near the entropy", model=SHOWCASE, seq_len=128, batch_size=16, steps=400, lr=5e-3),
    case("bf16", runtime={"precision": "bf16"}, steps=120),
    case("bf16 text", runtime={"precision": "bf16"}, data=TEXT, steps=120, lr=5e-3),
    case("resumed", killed_after=45, save_every=20, steps=100),
    case("resumed twice as long", killed_after=130, save_every=50, steps=260, lr=1e-2),
    case("eight steps", steps=8, warmup_steps=2),
    case("one step", steps=1, warmup_steps=1),
    case("long", steps=400),
    case("long text", data=TEXT, steps=400, lr=1e-2),
    case("periodic text", data=PERIODIC, steps=250),
    case("needle, short rows", data=NEEDLE, seq_len=192, steps=200, batch_size=2, lr=1e-2),
    case("sigmoid gate", model={"gate": "sigmoid"}, steps=120),
    case("not clipped, decays", grad_clip=0.0, weight_decay=0.1, steps=150),
    case("sliding alone", model={"branch": "win"}, steps=100),
    case("compressed by mlp", model={"phi": "mlp"}, steps=120),
    case("evaluates often", eval_every=5, save_every=10, log_every=1, steps=80),
)


def write_texts(folder: Path) -> None:
    """Prose and code of this checkout, and lines that repeat themselves."""
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "nsa").rglob("*.py"))]
    (folder / "prose.txt").write_text("\n\n".join(path.read_text(encoding="utf-8") for path in paths), encoding="utf-8")
    words = ("the quick brown fox", "jumps over", "the lazy dog", "and sleeps", "all day long")
    order = random_words(0, "train", 0, 12_000) % len(words)
    lines = [" ".join(words[each] for each in order[start : start + 4]) for start in range(0, len(order), 4)]
    (folder / "periodic.txt").write_text("\n".join(lines), encoding="utf-8")


def results_of(case: Case, seed: int, place: Path) -> list[Result]:
    """Train it, and the end of every check of runs."""
    out = place / f"{case.name.replace(' ', '_').replace(',', '')}_{seed}"
    changes = {"seed": seed, "save_every": SAVE_EVERY, **case.train}
    document = document_of(out, model=case.model, runtime=case.runtime, **changes)
    document["nsa"] = document["nsa"] | {
        key: document["model"].pop(key) for key in ("phi", "gate") if key in document["model"]
    }
    document["data"] = document["data"] | {
        key: value.replace("text:", f"text:{place}/") for key, value in case.data.items()
    }
    config = place / f"{out.name}.json"
    config.write_text(json.dumps(document), encoding="utf-8")
    if case.killed_after is not None:
        _train(config, out, until=case.killed_after)
    _train(config, out, resume=case.killed_after is not None)
    record = with_steps_again(read_run(out), RecomputeRequest(), lambda text, done, total: None)
    subject = RunSubject(name=case.name, record=record, now=time.time(), options=(str(out),))
    return judged(registry.of_kind("run"), subject)


def _train(config: Path, out: Path, *, resume: bool = False, until: int | None = None) -> None:
    words = [sys.executable, "-m", "nsa.train", "--config", str(config), *(["--resume", "auto"] * resume)]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        beats = out / "heartbeat_rank0.jsonl"
        while until is not None and child.poll() is None:
            if beats.exists() and f'"step": {until}, "msg": "step"' in beats.read_text(encoding="utf-8"):
                child.send_signal(signal.SIGKILL)
                return
            time.sleep(0.02)
        _, errors = child.communicate()
    if child.returncode:
        raise RuntimeError(f"{config.stem}: the trainer ended with {child.returncode}: {errors.decode()[-500:]}")


def summary(results: Sequence[Result]) -> tuple[list[str], str]:
    """A line for each finding or crash, and how many checks ended in which way."""
    lines = [f"{each.code} {each.message}" for result in results for each in result.findings]
    lines += [f"{result.code} CRASH {result.reason}" for result in results if result.verdict == "CRASH"]
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    return lines, ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))


def main() -> int:
    """Print a line for each run, every finding, and a last line of counts; 1 when there was any finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first of the runs")
    parser.add_argument("--keep", type=Path, help="where the runs are kept; thrown away without")
    options = parser.parse_args()
    num_findings = 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        place = options.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        write_texts(place)
        numbers = range(options.first, options.first + options.runs)
        chosen = [(CASES[number % len(CASES)], number) for number in numbers]
        answers = pool.map(lambda each: results_of(each[0], each[1], place), chosen)
        for (each, seed), results in zip(chosen, answers, strict=True):
            lines, counts = summary(results)
            num_findings += len(lines)
            print(f"{each.name:24} seed {seed:3}: {counts}", flush=True)
            for line in lines:
                print(f"    {line}", flush=True)
    print(f"{options.runs} healthy runs: {num_findings} findings")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
