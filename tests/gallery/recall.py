"""Scores the doctor on the gallery: `python -m tests.gallery.recall`, or `make recall`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.gallery.cases import FAMILIES, HEALTHY, Case, read_cases
from tests.gallery.examination import ROOT, SECONDS, Examination, examine
from tests.gallery.score import Score, render

SHIPPED = ROOT / "nsa_doctor" / "core" / "score.json"


def main(words: Sequence[str] | None = None) -> int:
    """Examine, print, write; 0 whatever the score, for the score is what was asked for."""
    options = parser().parse_args(words)
    cases = [case for case in read_cases(tuple(options.family)) if not options.only or case.name in options.only]
    is_whole = not options.only and {*options.family} == {*FAMILIES, HEALTHY} and options.profile == "quick"
    if options.ship and not is_whole:
        print("--ship is for a score of every case in the profile quick", file=sys.stderr)
        return 2
    if not cases:
        print("no case has such a name or family", file=sys.stderr)
        return 2
    examinations = []
    for each in examine_all(cases, options.jobs, options.profile, options.seconds):
        examinations.append(each)
        if not options.quiet:
            print(one_line(each), file=sys.stderr, flush=True)
    order = {case.spec: place for place, case in enumerate(cases)}
    score = Score(tuple(sorted(examinations, key=lambda each: order[each.case.spec])))
    print("\n".join(render(score)))
    if options.ship:
        _ship(score)
    if options.output:
        options.output.write_text(json.dumps(score.as_json(), indent=2) + "\n", encoding="utf-8")
    return 0


def _ship(score: Score) -> None:
    """Write score.json, which ships with the doctor: who was measured, and when."""
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    shipped = score.shipped(version("nsa-doctor"), here.stdout.strip(), datetime.now(UTC).date().isoformat())
    before = json.loads(SHIPPED.read_text(encoding="utf-8"))
    shipped |= {"unseen": before["unseen"]} if "unseen" in before else {}  # judged by reading, in docs/benchmarks.md
    others = before.get("families", {})
    shipped["families"] |= {"FUN": others["FUN"]} if "FUN" in others else {}  # measured on functions, by themselves
    SHIPPED.write_text(json.dumps(shipped, indent=2) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gallery.recall", description=__doc__)
    made.add_argument("--family", nargs="+", choices=(*FAMILIES, HEALTHY), default=(*FAMILIES, HEALTHY))
    made.add_argument("--only", nargs="+", metavar="NAME", help="cases by name")
    made.add_argument("--jobs", type=int, default=2, help="subjects examined at a time")
    made.add_argument("--profile", default="quick", choices=("smoke", "quick", "full"))
    made.add_argument("--seconds", type=float, default=SECONDS, help="a subject may take")
    made.add_argument("--output", type=Path, help="write the score to this file as JSON")
    made.add_argument("--ship", action="store_true", help="write what reports say of the doctor: all cases alone")
    made.add_argument("--quiet", action="store_true", help="print the score alone")
    return made


def examine_all(cases: Sequence[Case], jobs: int, profile: str, seconds: float) -> Iterator[Examination]:
    """Each case as it is done."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        yield from pool.map(lambda case: examine(case, profile, seconds), cases)


def one_line(each: Examination) -> str:
    said = ", ".join(f"{found.code} {found.module}".strip() for found in each.findings) or "nothing found"
    trouble = f"  ({'; '.join(each.trouble)})" if each.trouble else ""
    code = "-" if each.exit_code is None else each.exit_code
    return f"{each.seconds:5.1f} s  exit {code}  {each.case.family}/{each.case.name}: {said}{trouble}"


if __name__ == "__main__":
    sys.exit(main())
