"""Measures how often the doctor gives a GO to a faulty subject and a NO-GO to a healthy one: `make false-go`."""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path

from tests.false_go.conditions import CONDITIONS
from tests.false_go.examination import SECONDS, Examined, Healthy, examine
from tests.false_go.fault import Fault
from tests.false_go.healthy import healthy_subjects
from tests.false_go.product import drawn, product
from tests.false_go.score import Score, page, render, row

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def main(given: Sequence[str] | None = None) -> int:
    """Examine, print, write; 0 whatever the rates, for the rates are what was asked for."""
    options = parser().parse_args(given)
    subjects = chosen(options)
    if not subjects:
        print("no subject has such a name", file=sys.stderr)
        return 2
    examined = earlier(options.json, subjects) if options.resume else []
    left = [each for each in subjects if each.name not in {done.name for done in examined}]
    random.Random(options.seed).shuffle(left)  # a run that is ended early has seen some of each kind
    for each in examine_all(left, options.jobs, options.policy, options.seconds):
        examined.append(each)
        print(f"{len(examined):3d}/{len(subjects)} {row(each)}", file=sys.stderr, flush=True)
        if options.json:
            text = json.dumps(Score(tuple(examined)).as_json(), indent=2)
            options.json.write_text(text + "\n", encoding="utf-8")
    score = Score(tuple(examined))
    print("\n".join(render(score)))
    if options.docs:
        PAGE.write_text(page(score, options.seed, options.policy), encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.false_go", description=__doc__)
    made.add_argument("--only", nargs="+", metavar="NAME", help="subjects by name, * and ? allowed; of all there are")
    made.add_argument("--kind", choices=("all", "faults", "healthy"), default="all")
    made.add_argument("--count", type=int, default=len(CONDITIONS), help="faults drawn")
    made.add_argument("--seed", type=int, default=0, help="of the draw of faults; another seed gives other faults")
    made.add_argument("--jobs", type=int, default=2, help="subjects examined at a time")
    made.add_argument("--policy", default="foreign")
    made.add_argument("--seconds", type=float, default=SECONDS, help="a subject may take")
    made.add_argument("--json", type=Path, help="write the results to this file, after each subject")
    made.add_argument("--resume", action="store_true", help="go on after what --json holds")
    made.add_argument("--docs", action="store_true", help="write the rates to docs/benchmarks.md")
    return made


def chosen(options: argparse.Namespace) -> list[Fault | Healthy]:
    """The subjects the options name; without names, the faults that the seed draws and all healthy subjects."""
    faults = list(product()) if options.only else drawn(options.seed, options.count)
    subjects: list[Fault | Healthy] = []
    subjects += faults if options.kind != "healthy" else []
    subjects += healthy_subjects() if options.kind != "faults" else []
    return [each for each in subjects if not options.only or any(fnmatch(each.name, name) for name in options.only)]


def earlier(file: Path | None, subjects: Sequence[Fault | Healthy]) -> list[Examined]:
    """What an earlier run wrote of these subjects."""
    if file is None or not file.is_file():
        return []
    written = json.loads(file.read_text(encoding="utf-8"))
    by_name = {each.name: each for each in subjects}
    records = [record for record in (*written["faults"], *written["healthy"]) if record["name"] in by_name]
    return [Examined.from_json(by_name[record["name"]], record) for record in records]


def examine_all(subjects: Sequence[Fault | Healthy], jobs: int, policy: str, seconds: float) -> Iterator[Examined]:
    """Each subject as it is done."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = [pool.submit(examine, subject, policy, seconds) for subject in subjects]
        yield from (each.result() for each in as_completed(waiting))


if __name__ == "__main__":
    sys.exit(main())
