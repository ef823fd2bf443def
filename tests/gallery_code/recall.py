"""Scores the doctor on the bugs and the healthy variants of these code bases: `python -m tests.gallery_code.recall`."""

import argparse
import importlib
import json
import random
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nsa_doctor.core.finding import ExitCode
from nsa_doctor.core.share import Share
from tests.gallery.examination import Ended, Found, read_findings, run_doctor
from tests.gallery_code.planting import Bug, Variant, lay_out, lines_at_fault

HOSTS = ("harbor", "lucid", "mosaic", "quarry", "tundra", "cobalt")
VIEWS = {"black box": "factory", "adapter": "adapter"}
SEVERAL = {  # the model around it has a training loop, or the part within it none
    ("quarry", "adapter"): ("make", "make_language_model"),
    ("tundra", "adapter"): ("make", "make_language_model"),
    ("cobalt", "adapter"): ("make", "make_decoder"),
}
SECONDS = 400.0
NEAR = 3  # lines: a statement of several is named by one of them


@dataclass(frozen=True, kw_only=True)
class Examined:
    """One host with one change, seen in one view, and what the doctor said of it."""

    host: str
    name: str
    kind: str
    needs: str
    view: str
    exit_code: int | None
    seconds: float
    findings: tuple[Found, ...]
    is_at_line: bool
    is_named: bool
    is_in_file: bool

    @property
    def is_found(self) -> bool:
        return self.exit_code == ExitCode.WRONG and bool(self.findings)

    def __str__(self) -> str:
        said = "; ".join(f"{each.code} {Path(each.file).name}:{each.line}" for each in self.findings[:4])
        at = "line" if self.is_at_line else "named" if self.is_named else "file" if self.is_in_file else ""
        return f"{self.host:7}{self.name:34}{self.view:10}exit {self.exit_code!s:5}{self.seconds:5.0f} s {at:5}{said}"


def main(words: Sequence[str] | None = None) -> int:
    """Examine and print; 0 whatever the score."""
    options = _parser().parse_args(words)
    plans = list(_plans(options.host, options.view, options.only))
    if options.healthy:
        plans = [plan for plan in plans if isinstance(plan[1], Variant)]
    if options.sample is not None:
        plans = random.Random(options.seed).sample(plans, min(options.sample, len(plans)))
    done: list[Examined] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for examined in pool.map(lambda plan: examine(*plan, options.profile), plans):
            done.append(examined)
            print(examined, file=sys.stderr, flush=True)
    print("\n".join(score(done)))
    if options.output:
        options.output.write_text(json.dumps([asdict(each) for each in done], indent=2) + "\n", encoding="utf-8")
    return 0


def changes_of(host: str) -> tuple[Sequence[Bug], Sequence[Variant]]:
    """The bugs and the healthy variants of a host."""
    bugs = importlib.import_module(f"tests.gallery_code.bugs.{host}").BUGS
    return bugs, importlib.import_module(f"tests.gallery_code.healthy.{host}").VARIANTS


def _plans(hosts: Sequence[str], views: Sequence[str], only: Sequence[str]) -> Iterator[tuple[str, Bug | Variant, str]]:
    for host in hosts:
        bugs, variants = changes_of(host)
        for change in (*bugs, *variants):
            for view in views:
                if not only or change.name in only:
                    yield host, change, view


def examine(host: str, change: Bug | Variant, view: str, profile: str = "quick") -> Examined:
    """Lay the host out in a folder of its own and run the doctor there."""
    with TemporaryDirectory() as folder:
        package = lay_out(host, change, Path(folder))
        lines = lines_at_fault(change, package) if isinstance(change, Bug) else set()
        ended = _worst(run_doctor(words, SECONDS, Path(folder)) for words in _calls(host, view, profile))
    findings, _ = read_findings(ended.out, ended.complaint)
    here = [found for found in findings if Path(found.file).name == Path(change.file).name]
    near = [found for found in here if any(abs(found.line - line) <= NEAR for line in lines)]
    return Examined(
        host=host,
        name=change.name,
        kind=change.kind if isinstance(change, Bug) else "healthy",
        needs=change.needs if isinstance(change, Bug) else "",
        view=view,
        exit_code=ended.exit_code,
        seconds=ended.seconds,
        findings=findings,
        is_at_line=bool(near),
        is_named=bool(near) or any(_names(found.message, Path(change.file).name, lines) for found in findings),
        is_in_file=bool(here),
    )


def _names(message: str, file: str, lines: Collection[int]) -> bool:
    """Whether a sentence names a line of the file that is near one of these."""
    named = re.findall(rf"\b{re.escape(file)}:(\d+)", message)
    return any(abs(int(number) - line) <= NEAR for number in named for line in lines)


def _calls(host: str, view: str, profile: str) -> Iterator[list[str]]:
    """The command line of each subject that a view of the host has."""
    for name in SEVERAL.get((host, view), ("make",)):
        subject = f"{host}.{VIEWS[view]}:{name}"
        yield ["run", "--subject", subject, "--profile", profile, "--jobs", "1", "--format", "json", "--quiet"]


def _worst(endings: Iterable[Ended]) -> Ended:
    """The first that says NO-GO, without waiting for others; else the one that says least good."""
    seen: list[Ended] = []
    for ended in endings:
        seen.append(ended)
        if ended.exit_code == ExitCode.WRONG:
            return ended
    return max(seen, key=lambda ended: -1 if ended.exit_code is None else ended.exit_code)


def score(done: Sequence[Examined]) -> Iterator[str]:
    """Recall by view, places and false alarms, each with its Wilson interval."""
    for view in VIEWS:
        bugs = [each for each in done if each.view == view and each.kind != "healthy"]
        own = [each for each in bugs if view == "adapter" or each.needs == view]
        found = [each for each in own if each.is_found]
        yield share_line(f"found, {view}", len(found), len(own))
        yield share_line("  a finding within three lines of it", sum(each.is_at_line for each in found), len(found))
        yield share_line("  or a line that its words name", sum(each.is_named for each in found), len(found))
        yield share_line("  a finding in its file", sum(each.is_in_file for each in found), len(found))
        healthy = [each for each in done if each.view == view and each.kind == "healthy"]
        yield share_line(f"false alarms, {view}", sum(each.is_found for each in healthy), len(healthy))


def share_line(words: str, part: int, whole: int) -> str:
    """A line of a score."""
    return f"{words}: {Share(part, whole)}"


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gallery_code.recall", description=__doc__)
    made.add_argument("--host", nargs="+", choices=HOSTS, default=HOSTS)
    made.add_argument("--view", nargs="+", choices=tuple(VIEWS), default=tuple(VIEWS))
    made.add_argument("--only", nargs="+", metavar="NAME", default=(), help="bugs and variants by name")
    made.add_argument("--healthy", action="store_true", help="the healthy variants alone")
    made.add_argument("--sample", type=int, help="examine so many, drawn by --seed")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=2, help="subjects examined at a time")
    made.add_argument("--profile", default="quick", choices=("smoke", "quick", "full"))
    made.add_argument("--output", type=Path, help="write everything to this file as JSON")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
