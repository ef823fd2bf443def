"""`nsa-doctor go-no-go --prove N`: mutants of the subject's own source before the policy that gave it a GO."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Report
from nsa_doctor.core.lengths import evenly
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.core.proof import COUNTED, MutantFate, Proof
from nsa_doctor.core.report_facts import repository
from nsa_doctor.core.text import counted
from nsa_doctor.engine.run import Listener, RunRequest
from nsa_doctor.engine.sweep_plan import sweep_points
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.policy.policy import Acceptance, Policy, Requirement
from nsa_doctor.policy.proving.mutants import Mutant, drawn, edits
from nsa_doctor.policy.proving.one_mutant import Trial
from nsa_doctor.policy.proving.source import read_source
from nsa_doctor.policy.proving.warm import warm_children

_MOST_LENGTHS, _LONGEST = 7, 300  # a mutant is compared at these before it is examined at all
_LOOK_SECONDS = 0.2
_MOST_NAMED = 3
_PARTS_OF_A_SWEEP = 2.0  # loading and comparing beside the passes that are timed


class NothingToProveError(Exception):
    """There is no mutant to be tried; one sentence says why."""


@dataclass(frozen=True, kw_only=True)
class ProveRequest:
    """How many mutants to try, drawn by which seed, of whom, and before which policy."""

    count: int
    seed: int
    policy: Policy
    module_checks: RunRequest | None


@dataclass
class _Work:
    """What is known so far: it grows, and an interruption keeps what there is."""

    request: ProveRequest
    begin: float = field(default_factory=time.perf_counter)
    facts: dict[str, Any] = field(default_factory=dict)
    fates: dict[int, MutantFate] = field(default_factory=dict)
    reason: str = ""


def prove(request: ProveRequest, report: Report, listen: Listener = lambda text, done, total: None) -> Report:
    """The report with what the policy notices of mutants; a KeyboardInterrupt keeps what is known.

    Of a subject that is not a GO as it stands nothing is proved.
    """
    work = _Work(request)
    interrupted = False
    try:
        checks = _checks_of(request, report)
        with warm_children(checks.examination_request.device), TemporaryDirectory(prefix="nsa-doctor-") as folder:
            _prove(work, checks, report, f"{folder}/as-it-is.pt", listen)
    except NothingToProveError as nothing:
        work.reason = str(nothing)
    except KeyboardInterrupt:
        interrupted = True
        work.reason = "interrupted"
    return replace(report, proof=_proof(work), interrupted=report.interrupted or interrupted)


def _checks_of(request: ProveRequest, report: Report) -> RunRequest:
    if report.decision is not Decision.GO:
        raise NothingToProveError(f"the subject is {report.decision.value} as it stands: mend it first")
    if request.module_checks is None:
        raise NothingToProveError(f"the policy {request.policy.name} requires no check of the module itself")
    return request.module_checks


def _prove(work: _Work, checks: RunRequest, report: Report, record: str, listen: Listener) -> None:
    terms = replace(checks.examination_request, threads=1)
    reached = _looked_at(work, Supervisor(terms), record)
    sources = {file: source for file in reached if (source := read_source(file)) is not None}
    if not sources:
        raise NothingToProveError("no line of Python source is reached that belongs to the subject's package")
    work.facts["candidates"] = sum(len(edits(sources[file], reached[file])) for file in sources)
    work.facts["files"] = tuple(map(_short, sources))
    trial = Trial(
        examination_request=_like(terms, work.facts),
        policy=_of_module(work.request.policy, checks, report),
        checks=checks,
        subject=report.subject,
        seconds={result.code: result.seconds for result in report.results},
        sweep_seconds=_PARTS_OF_A_SWEEP * sum(each.seconds or 0.0 for each in report.measurements),
        record=record,
    )
    _try_all(work, trial, drawn(sources, reached, work.request.seed), checks.jobs, listen)
    missing = work.request.count - sum(fate.fate in COUNTED for fate in work.fates.values())
    if missing > 0:
        work.reason = f"no more of its lines' {counted(work.facts['candidates'], 'mutant')} change what it computes"


def _looked_at(work: _Work, supervisor: Supervisor, record: str) -> Mapping[str, Sequence[int]]:
    """The lines that the subject reaches, by file; what it gives as it stands is written to a file."""
    try:
        supervisor.load()
        if not supervisor.facts:
            raise NothingToProveError("the subject cannot be loaded once more")
        work.facts.update(supervisor.facts)
        lengths = work.facts["compared"] = _lengths(supervisor)
        reached = supervisor.reached(lengths)
        written = supervisor.effect(record, lengths)
        for answer in (reached, written):
            if isinstance(answer, Trouble):
                raise NothingToProveError(f"the subject does not answer as it stands: {answer.message}")
        assert not isinstance(reached, Trouble)
        assert not isinstance(written, Trouble)
        if written["kind"] != "recorded":
            raise NothingToProveError(f"the subject does not answer as it stands: {written['said']}")
        lines: Mapping[str, Sequence[int]] = reached["lines"]
        if not lines and reached["left_out"]:
            names = ", ".join(map(_short, reached["left_out"][:_MOST_NAMED]))
            raise NothingToProveError(f"the doctor itself runs on {names}: what it measures with cannot be mutated")
        return lines
    finally:
        supervisor.close()


def _lengths(supervisor: Supervisor) -> list[int]:
    """A few of the lengths that the policy's profile sweeps, the least ones first."""
    swept = sweep_points(supervisor.examination_request.profile, supervisor.facts)
    lengths = sorted({point.length for point in swept if point.values == "normal"})
    short = [length for length in lengths if length <= _LONGEST] or lengths[:1]
    return evenly(short, _MOST_LENGTHS)


def _like(terms: ExaminationRequest, facts: Mapping[str, Any]) -> ExaminationRequest:
    """What was found out about the subject need not be found out of each mutant."""
    known = {"input": facts["input"], "width": facts["width"]} if terms.spec is not None else {}
    return replace(terms, found_out=facts["found_out"], **known)


def _of_module(policy: Policy, checks: RunRequest, report: Report) -> Policy:
    """What the policy requires of the module itself: a checkpoint, a run or data are the same for every mutant."""
    codes = [entry.manual.code for entry in checks.checks]
    own = [(each, tuple(code for code in codes if code.startswith(each.codes))) for each in policy.require]
    require = tuple(
        Requirement(codes=mine, because=each.because, where_offered=each.where_offered) for each, mine in own if mine
    )
    known = () if report.verdict is None else report.verdict.accepted
    accept = tuple(Acceptance(fingerprint=each.fingerprint, because=each.because) for each in known)
    return policy.model_copy(update={"require": require, "limits": (), "accept": accept})


def _try_all(work: _Work, trial: Trial, mutants: Iterator[Mutant], jobs: int, listen: Listener) -> None:
    """Try mutants until as many as asked for count; they end in any order and count in the order they were drawn."""
    started: list[Supervisor] = []
    running: dict[Future[MutantFate | None], int] = {}
    pool = ThreadPoolExecutor(jobs)
    number = 0
    try:
        while not _has_enough(work):
            while len(running) < jobs and (mutant := next(mutants, None)) is not None:
                running[pool.submit(trial.fate_of, mutant, started.append)] = number
                number += 1
            if not running:
                return
            ended, _ = wait(running, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                fate = future.result()
                place = running.pop(future)
                if fate is not None:
                    work.fates[place] = fate
                    done = min(sum(each.fate in COUNTED for each in work.fates.values()), work.request.count)
                    listen(_line(fate), done, work.request.count)
    finally:
        for supervisor in started:
            supervisor.interrupt()
        pool.shutdown(wait=True, cancel_futures=True)


def _has_enough(work: _Work) -> bool:
    return sum(fate.fate in COUNTED for fate in _in_order(work)) >= work.request.count


def _in_order(work: _Work) -> list[MutantFate]:
    """The fates up to the first that is not known yet, and no more than asked for: the same for any number of jobs."""
    kept: list[MutantFate] = []
    number = 0
    while number in work.fates and sum(fate.fate in COUNTED for fate in kept) < work.request.count:
        kept.append(work.fates[number])
        number += 1
    return kept


def _line(fate: MutantFate) -> str:
    by = f" by {fate.by.partition(' ')[0]}" if fate.by else ""
    return f"{fate.fate}{by}: {_short(fate.file)}:{fate.line} {fate.after}"


def _short(file: str) -> str:
    """A file as it stands below the checkout or the current folder."""
    root = Path(repository())
    return str(Path(file).relative_to(root)) if Path(file).is_relative_to(root) else file


def _proof(work: _Work) -> Proof:
    facts = work.facts
    modes = [mode for mode in ("train", "eval") if mode in facts.get("modes", ())]
    modes += ["decode"] if {"prefill", "step"} <= set(facts.get("seams", ())) else []
    made = Proof(
        asked=work.request.count,
        seed=work.request.seed,
        candidates=facts.get("candidates", 0),
        files=facts.get("files", ()),
        lengths=tuple(facts.get("compared", ())),
        dtype=facts.get("dtype", ""),
        modes=tuple(modes),
        mutants=tuple(replace(fate, file=_short(fate.file)) for fate in _in_order(work)),
        reason=work.reason,
        seconds=time.perf_counter() - work.begin,
    )
    low, high = made.noticed.interval
    return replace(made, noticed_low=low, noticed_high=high)
