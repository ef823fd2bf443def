"""Mutates nsa/ops, nsa/nn and nsa/train, and counts how many mutants `nsa-doctor run` and `smoke` notice.

make mutants                                     100 of them, on two cores; an hour at most
make mutants ARGS="--count 20 --seed 7 --output mutants.json"

Mutants are those of `go-no-go --prove`, on every line that computes on a CPU and not only on those that one subject
reaches. Each is examined by the command line, on small models so that it takes seconds: in nsa/ops and nsa/nn the
layer, then a layer with other options, the language model, and the operator as a function, by `run`; in nsa/train a run
that is killed and resumed, by `smoke`. The first finding ends it. What nobody notices is given to the tests: a mutant
that they notice changes what is computed and counts as missed; one that they do not either is listed, and counts for
nothing, since it may well compute the same. First the tree as it is has to pass all of these.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from nsa_doctor.core.share import Share
from nsa_doctor.policy.proving.mutants import Mutant, drawn
from nsa_doctor.policy.proving.source import Source, read_source

ROOT = Path(__file__).parents[1]
FOLDERS = ("nsa/ops", "nsa/nn", "nsa/train")
COPIED = ("nsa", "nsa_doctor", "regressions", "configs", "tests")
_EXAMINED = ("--profile", "quick", "--jobs", "1", "--fail-fast", "--format", "json", "--quiet")
_AS_NATIVE = ("--like", "native", "--spec", "causal,block=8,topk=3,window=12,gqa=2")
RUNS = (
    ("run", "--config", "tests/mutants_layer.yaml", *_EXAMINED),
    ("run", "--config", "tests/mutants_other.yaml", *_EXAMINED),
    ("run", "--subject", "tests.mutants_model:model", *_EXAMINED),
    ("run", "--subject", "fn:nsa:nsa_attention", *_AS_NATIVE, *_EXAMINED),
)
OF_TRAINING = (("smoke", "--config", "tests/mutants_run.yaml", "--jobs", "1", "--quiet", "--output", "smoke"),)
# What never runs here proves nothing: kernels, what launches them or arranges their work, what several processes do.
NEVER_HERE = (
    *("flash.py", "fused.py", "triton.py", "readers.py", "memory.py", "context.py", "step.py", "graph.py"),
    *("loss_kernels.py", "spread.py", "world.py"),
)
# What decides which numbers a run comes to; the rest of nsa/train reports, draws, waits and refuses.
DECIDING = ("checkpoint.py", "evaluate.py", "feed.py", "loop.py", "moments.py", "objective.py", "optimizer.py")
DECIDING += ("replay.py", "saving.py", "schedule.py", "setup.py")
TESTS, TESTS_OF_TRAINING = ("tests/nsa/ops", "tests/nsa/nn"), ("tests/nsa/train",)
IMPORTS_TRITON = re.compile(r"^import triton", re.MULTILINE)
SECONDS, SECONDS_OF_TESTS = 240.0, 900.0


# An installation of the tree as it is, as in .venv, would be taken for somebody else's package of that name.
_WITHOUT_INSTALLATION = (
    "import os, sys\n"
    "here = os.path.dirname(os.path.abspath(__file__))\n"
    "sys.path[:] = [each for each in sys.path if each == here or not os.path.isdir(os.path.join(each, 'nsa_doctor'))]\n"
    "sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in getattr(each, '__module__', '')]\n"
)


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of a mutant: noticed (by which subject and finding), missed, or distinguished by nobody."""

    mutant: Mutant
    end: str
    by: str = ""
    seconds: float = 0.0


def drawn_mutants(seed: int) -> Iterator[Mutant]:
    """Every mutant there can be, in the order that the seed draws."""
    sources: dict[str, Source] = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        source = read_source(str(path))
        is_elsewhere = path.name in NEVER_HERE or path.parent.name == "hopper"
        is_elsewhere |= path.parent.name == "train" and path.name not in DECIDING
        if source is not None and not is_elsewhere and not IMPORTS_TRITON.search(source.text):
            sources[str(path.relative_to(ROOT))] = source
    lines = {file: range(1, source.text.count("\n") + 2) for file, source in sources.items()}
    return drawn(sources, lines, seed)


def faults_of_the_tree(jobs: int) -> list[str]:
    """What the examinations say of the tree as it is: a mutant would count as noticed by it."""
    with tempfile.TemporaryDirectory(prefix="nsa-mutant-") as place, ThreadPoolExecutor(jobs) as pool:
        _copy(Path(place))
        found = pool.map(lambda words: list(_notices(Path(place), [words])), (*RUNS, *OF_TRAINING))
        return [f"{end} {by}" for each in found for end, by in each]


def _copy(root: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "sitecustomize.py").write_text(_WITHOUT_INSTALLATION, encoding="utf-8")


def examined(mutant: Mutant, asks_tests: bool) -> Fate:
    """Its fate."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nsa-mutant-") as place:
        root = Path(place)
        _copy(root)
        (root / mutant.file).write_text(mutant.text, encoding="utf-8")
        is_of_training = mutant.file.startswith("nsa/train")
        end, by = next(_notices(root, OF_TRAINING if is_of_training else RUNS), ("", ""))
        if not end and asks_tests:
            end, by = _tests_notice(root, TESTS_OF_TRAINING if is_of_training else TESTS)
        return Fate(mutant=mutant, end=end or "unknown", by=by, seconds=time.perf_counter() - start)


def _notices(root: Path, examinations: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    for words in examinations:
        name = words[2]
        try:
            done = run([sys.executable, "-m", "nsa_doctor", *words], root, SECONDS)
        except subprocess.TimeoutExpired:
            yield "noticed", f"{name}: more than {SECONDS:g} s"
            continue
        if done.returncode == 1:
            yield "noticed", f"{name}: {_first_finding(done.stdout, root / 'smoke' / 'report.json')}"
        elif done.returncode == 2:
            yield "refused", f"{name}: {done.stderr.strip()[:120]}"
        elif done.returncode == 4:
            yield "broke the doctor", f"{name}: {done.stderr.strip()[:120]}"


def _first_finding(printed: str, bundle: Path) -> str:
    report = json.loads(bundle.read_text() if bundle.exists() else printed)
    findings = [found for result in report["results"] for found in result["findings"]]
    return f"{findings[0]['code']} {findings[0]['message'][:80]}" if findings else "NO-GO"


def _tests_notice(root: Path, tests: Sequence[str]) -> tuple[str, str]:
    """Whether the package's own tests of what was mutated tell it apart."""
    words = ["-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = run([sys.executable, "-m", "pytest", *words], root, SECONDS_OF_TESTS)
    except subprocess.TimeoutExpired:
        return "missed", "the tests do not end"
    if done.returncode == 0:
        return "distinguished by nobody", ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "missed", failed[0][:150] if failed else f"pytest ends with {done.returncode}"


def run(words: Sequence[str], root: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """In the mutated tree, on one thread, its packages before any installed ones."""
    settings: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        words,
        cwd=root,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
    )


def summary(fates: Sequence[Fate]) -> str:
    """The score, and everything that was not noticed."""
    ends = {end: sum(fate.end == end for fate in fates) for end in dict.fromkeys(fate.end for fate in fates)}
    noticed = ends.get("noticed", 0) + ends.get("refused", 0)
    counted = noticed + ends.get("missed", 0) + ends.get("broke the doctor", 0)
    lines = [f"{len(fates)} mutants: {', '.join(f'{count} {end}' for end, count in ends.items())}"]
    if counted:
        lines.append(f"noticed, of those that change something: {Share(noticed, counted)}")
    for fate in fates:
        if fate.end not in ("noticed", "refused"):
            mutant = fate.mutant
            lines += [f"{fate.end}: {mutant.file}:{mutant.line} {mutant.kind}", f"    - {mutant.before}"]
            lines += [f"    + {mutant.after}", *([f"    {fate.by}"] if fate.by else [])]
    return "\n".join(lines)


def _record(fate: Fate) -> dict[str, object]:
    mutant = {name: value for name, value in asdict(fate.mutant).items() if name != "text"}
    return {**asdict(fate), "mutant": mutant}


def main() -> int:
    """1 when fewer than nine in ten are noticed, 2 when something is found in the tree as it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-tests", action="store_true", help="do not ask the tests about what was not noticed")
    parser.add_argument("--output", type=Path, help="write every fate to this JSON file")
    asked = parser.parse_args()
    if faults := faults_of_the_tree(asked.jobs):
        print("the tree as it is does not pass, and no mutant would tell anything:", *faults, sep="\n")
        return 2
    mutants = islice(drawn_mutants(asked.seed), asked.count)
    fates: list[Fate] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for fate in pool.map(lambda mutant: examined(mutant, not asked.no_tests), mutants):
            fates.append(fate)
            mutant = fate.mutant
            print(f"{len(fates):3d} {fate.end} {mutant.file}:{mutant.line} {fate.by[:90]}", flush=True)
    print(summary(fates))
    if asked.output is not None:
        asked.output.write_text(json.dumps([_record(fate) for fate in fates], indent=1))
    noticed = sum(fate.end in ("noticed", "refused") for fate in fates)
    missed = sum(fate.end in ("missed", "broke the doctor") for fate in fates)
    return 0 if noticed >= 9 * missed and noticed else 1


if __name__ == "__main__":
    sys.exit(main())
