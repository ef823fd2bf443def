"""Scores the doctor on these attention functions: `python -m tests.gallery_functions.recall`."""

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from nsa_doctor.core.finding import ExitCode
from tests.gallery.examination import ROOT, Found, read_findings, run_doctor
from tests.gallery.recall import SHIPPED
from tests.gallery.score import Share
from tests.gallery_code.recall import NEAR, share_line
from tests.gallery_functions.cases import HEALTHY, WRONG
from tests.gallery_functions.planting import Case, Wrong, lay_out

SECONDS = 300.0
LIKES = tuple(dict.fromkeys(case.like for case in (*WRONG, *HEALTHY)))
# The words by which a message may name a tensor, for findings whose evidence has no `tensor`.
WORDS = {
    "out": r"\bout(put)?\b",
    "lse": r"\b(lse|logsumexp)\b",
    "dq": r"\bdq\b|\bgradient\w* of (the )?(q|query|queries)\b",
    "dk": r"\bdk\b|\bgradient\w* of (the )?(k|keys?)\b",
    "dv": r"\bdv\b|\bgradient\w* of (the )?(v|values?)\b",
    "dbias": r"\bd(bias|mask|attn_mask)\b|\bgradient\w* of (the )?(bias|mask|attn_mask)\b",
    "dsinks": r"\bd(sinks|s_aux)\b|\bgradient\w* of (the )?(sinks|s_aux)\b",
    "dout": r"\bdout\b|\bgradient\w* of (the )?out(put)?\b",
    "q": r"\bq\b|\bquery\b",
    "k_cache": r"\bk_cache\b",
    "v_cache": r"\bv_cache\b",
}


@dataclass(frozen=True, kw_only=True)
class Examined:
    """One function and what the doctor said of it; `tensors` are those that are wrong, none of a healthy one."""

    name: str
    like: str
    kind: str
    tensors: tuple[str, ...]
    is_backward_only: bool
    exit_code: int | None
    seconds: float
    findings: tuple[Found, ...]
    trouble: tuple[str, ...]
    is_at_line: bool

    @property
    def is_found(self) -> bool:
        return self.exit_code == ExitCode.WRONG and bool(self.findings)

    @property
    def names_tensor(self) -> bool:
        """Whether some finding names a wrong tensor before any other."""
        return self.is_found and any(named_tensor(found) in self.tensors for found in self.findings)

    @property
    def is_refused(self) -> bool:
        """Whether there was no report at all."""
        return self.exit_code not in (*_WITH_REPORT, None)

    def __str__(self) -> str:
        said = "; ".join(f"{each.code} {named_tensor(each)}".strip() for each in self.findings[:4])
        at = ("tensor " if self.names_tensor else "") + ("line" if self.is_at_line else "")
        found = "found" if self.is_found else "-"
        trouble = f"({'; '.join(self.trouble)})" if self.trouble and not self.findings else ""
        return (
            f"{self.name:44}{','.join(self.tensors) or 'healthy':18}exit {self.exit_code!s:5}{self.seconds:5.0f} s "
            f"{found:6}{at:12}{said}{trouble}"
        )


_WITH_REPORT = (ExitCode.WELL, ExitCode.WRONG, ExitCode.UNMEASURED)


def named_tensor(found: Found) -> str:
    """The tensor that a finding is about: its evidence's, or the first in its message; "" for none."""
    if found.tensor:
        return found.tensor
    places = {name: match.start() for name, words in WORDS.items() if (match := re.search(words, found.message))}
    return min(places, key=lambda name: places[name], default="")


def main(words: Sequence[str] | None = None) -> int:
    """Examine and print; 0 whatever the score."""
    options = _parser().parse_args(words)
    cases = list(_chosen(options))
    if options.ship and (options.only or options.healthy or set(options.like) != set(LIKES)):
        print("--ship is for all cases, or for some that --sample draws of all", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(line for case in cases for line in described(case)))
        return 0
    done: list[Examined] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for examined in pool.map(lambda case: examine(case, options.profile, options.seconds), cases):
            done.append(examined)
            print(examined, file=sys.stderr, flush=True)
    print("\n".join(score(done)))
    if options.ship:
        _ship([each for each in done if each.tensors], options.profile)
    if options.output:
        options.output.write_text(json.dumps([asdict(each) for each in done], indent=2) + "\n", encoding="utf-8")
    return 0


def _ship(wrong: Sequence[Examined], profile: str, path: Path = SHIPPED) -> None:
    """Write the recall of the family FUN into score.json, which ships with the doctor, and leave the rest."""
    record = json.loads(path.read_text(encoding="utf-8"))
    share = Share(sum(each.is_found for each in wrong), len(wrong))
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    drawn = "all" if len(wrong) == len(WRONG) else f"drawn from {len(WRONG)}"
    day = datetime.now(UTC).date().isoformat()
    measured = f"wrong functions, {drawn}, profile {profile}, commit {here.stdout.strip()}, {day}"
    record.setdefault("families", {})["FUN"] = {**share.as_json(), "measured": measured}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _chosen(options: argparse.Namespace) -> Iterator[Case]:
    cases: list[Case] = [*([] if options.healthy else WRONG), *HEALTHY]
    if options.only and (unknown := {*options.only} - {case.name for case in cases}):
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}")
    cases = [case for case in cases if case.like in options.like and (not options.only or case.name in options.only)]
    if options.sample is not None:
        cases = random.Random(options.seed).sample(cases, min(options.sample, len(cases)))
    yield from cases


def described(case: Case) -> Iterator[str]:
    """What a case is, where its fault lies and in which call it is met."""
    yield f"{case.name}  --like {case.like} --spec {case.spec}"
    if isinstance(case, Wrong):
        places = ", ".join(str(number) for number in case.lines_at_fault())
        yield f"    {case.kind}: {', '.join(case.tensors)} wrong; {lay_out(case)}:{places}"
    yield f"    {case.says}"
    yield f"    in the call {case.scene}"
    if isinstance(case, Wrong) and case.right_with:
        yield "    right with " + ", ".join(f"{name}={value!r}" for name, value in case.right_with.items())


def examine(case: Case, profile: str = "quick", seconds: float = SECONDS) -> Examined:
    """Run the doctor on the case in a process of its own."""
    what = ["--subject", case.subject, "--like", case.like, "--spec", case.spec]
    ended = run_doctor(["run", *what, "--profile", profile, "--jobs", "1", "--format", "json", "--quiet"], seconds)
    findings, trouble = read_findings(ended.out, ended.complaint)
    lines = case.lines_at_fault() if isinstance(case, Wrong) else ()
    return Examined(
        name=case.name,
        like=case.like,
        kind=case.kind if isinstance(case, Wrong) else "healthy",
        tensors=case.tensors if isinstance(case, Wrong) else (),
        is_backward_only=isinstance(case, Wrong) and case.is_backward_only,
        exit_code=ended.exit_code,
        seconds=ended.seconds,
        findings=findings,
        trouble=trouble,
        is_at_line=any(
            Path(found.file).name == case.host.file and any(abs(found.line - line) <= NEAR for line in lines)
            for found in findings
        ),
    )


def score(done: Sequence[Examined]) -> Iterator[str]:
    """Recall, tensors, lines and false alarms, each with its Wilson interval; then what was missed."""
    wrong = [each for each in done if each.tensors]
    healthy = [each for each in done if not each.tensors]
    found = [each for each in wrong if each.is_found]
    yield share_line("found", len(found), len(wrong))
    for words, part in (
        ("  wrong in gradients alone", [each for each in wrong if each.is_backward_only]),
        ("  wrong in the output", [each for each in wrong if not each.is_backward_only]),
        *((f"  like {like}", [each for each in wrong if each.like == like]) for like in LIKES),
    ):
        yield share_line(words, sum(each.is_found for each in part), len(part))
    yield share_line("of those found, a wrong tensor named", sum(each.names_tensor for each in found), len(found))
    yield share_line("  a finding within three lines", sum(each.is_at_line for each in found), len(found))
    yield share_line("false alarms", sum(each.is_found for each in healthy), len(healthy))
    yield share_line("  healthy with a GO", sum(each.exit_code == ExitCode.WELL for each in healthy), len(healthy))
    yield from _listed("missed", [each for each in wrong if not each.is_found])
    yield from _listed("false alarms", [each for each in healthy if each.is_found])
    yield from _listed("no report", [each for each in done if each.is_refused])


def _listed(title: str, examined: Sequence[Examined]) -> Iterator[str]:
    if examined:
        yield f"\n{title}: {len(examined)}"
        yield from (f"  {each}  [{each.kind}]" for each in examined)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gallery_functions.recall", description=__doc__)
    made.add_argument("--like", nargs="+", choices=LIKES, default=LIKES)
    made.add_argument("--only", nargs="+", metavar="NAME", default=(), help="cases by name")
    made.add_argument("--list", action="store_true", help="say what the cases are, and examine none")
    made.add_argument("--healthy", action="store_true", help="the healthy functions alone")
    made.add_argument("--sample", type=int, help="examine so many, drawn by --seed")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=2, help="functions examined at a time")
    made.add_argument("--profile", default="quick", choices=("smoke", "quick", "full"))
    made.add_argument("--seconds", type=float, default=SECONDS, help="a function may take")
    made.add_argument(
        "--ship", action="store_true", help="write what reports say of them: all cases or a sample of all"
    )
    made.add_argument("--output", type=Path, help="write everything to this file as JSON")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
