"""`nsa-doctor fuzz`: searches target by target in a child process, saves what fails, tries a saved input again."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Measurement, Trouble
from nsa_doctor.core.report_facts import environment, subject_facts
from nsa_doctor.core.reproduce import CommandLine, reproduce
from nsa_doctor.core.signals import raise_if_interrupted
from nsa_doctor.core.writing import CannotWriteError, is_terminal
from nsa_doctor.engine.describe import findings
from nsa_doctor.engine.measure_points import Examination
from nsa_doctor.fuzz.cases import KERNELS, Target, case_lines, read_case
from nsa_doctor.fuzz.outcome import Failure, FuzzOutcome
from nsa_doctor.fuzz.replay import SavedCase, save
from nsa_doctor.fuzz.request import FuzzRequest
from nsa_doctor.fuzz.search import Search
from nsa_doctor.isolation.postmortem import notes_of_left
from nsa_doctor.isolation.supervisor import Supervisor

Listener = Callable[[str, int, int], None]
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_TICKS = 5.0, 0.1
_NEXT_SEED = 1_000_003
_LONGEST_MESSAGE = 1000
_NSAS_OWN = "nsa's are tried with the built-in subject"


@dataclass
class _State:
    """What was found out so far, kept when the run is interrupted."""

    facts: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    search: Search | None = None


def fuzz(request: FuzzRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """Search or replay, conclude; a KeyboardInterrupt ends it early and keeps what was found.

    Raises UsageError when the subject cannot be examined at all and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    state, interrupted = _State(), False
    with _placed(request) as examination_request:
        supervisor = Supervisor(examination_request)
        try:
            state.results += _loaded(supervisor.load(), request)
            state.facts = supervisor.facts
            if state.facts and request.replay is not None:
                state.results.append(_replayed(request, supervisor))
            elif state.facts:
                _search(request, supervisor, state, listen)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            supervisor.close()
    return Report(
        command="fuzz",
        subject=subject_facts(request.examination_request.spec, state.facts),
        options=_options(request),
        environment=environment(state.facts),
        results=tuple(state.results),
        notes=(*state.notes, *notes_of_left(supervisor.children)),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _search(request: FuzzRequest, supervisor: Supervisor, state: _State, listen: Listener) -> None:
    """Round after round over the targets; one that has failed is not searched again."""
    from nsa_doctor.fuzz import strategies

    offers = _asked(supervisor, None)
    assert not isinstance(offers, Trouble)
    offers = {**offers, "dtype": request.examination_request.dtype, "impl": request.impl}
    _check_impl(request, offers)
    is_builtin = request.examination_request.spec is None and request.examination_request.config is None
    searches: dict[Target, Search] = {}
    for target in request.targets:
        reason = _gap(target, offers)
        if reason:
            state.results.append(_result(target, Verdict.SKIP, reason=reason))
        else:
            searches[target] = Search()
    until = time.monotonic() + 60 * request.minutes if request.minutes is not None else float("inf")
    tell = _at_times(listen, len(searches))
    try:
        for number in count(request.examination_request.seed, _NEXT_SEED):
            open_ones = [target for target, search in searches.items() if search.failure is None]
            if not open_ones or (number != request.examination_request.seed and time.monotonic() >= until):
                break
            for target in open_ones:
                searches[target].run(
                    strategies.of(target, offers, is_builtin),
                    lambda case: _outcome(supervisor, case),
                    examples=request.examples,
                    number=number,
                    until=until,
                    listen=lambda search, target=target: tell(target, search, searches),
                )
                _conclude_failure(request, target, searches[target], state)
            if request.minutes is None:
                break
    finally:
        concluded = {result.name for result in state.results}
        for target, search in searches.items():
            if target not in concluded:
                _conclude_failure(request, target, search, state)
            if target not in concluded and search.failure is None:
                state.results.append(_unfailed(target, search))
        found = {finding.code for result in state.results if result.name != "loading" for finding in result.findings}
        state.results = [r for r in state.results if r.name != "loading" or r.findings[0].code not in found]
        state.results.sort(key=lambda result: [*request.targets, result.name].index(result.name))


def _conclude_failure(request: FuzzRequest, target: Target, search: Search, state: _State) -> None:
    """Save what failed at once, so that nothing that comes later can lose it."""
    if search.failure is None or search.case is None:
        return
    path = request.path(target)
    saved = _saved(request, target, search.failure, search.case)
    try:
        save(path, saved)
        repro = _replay_command(request, path, saved)
    except CannotWriteError as error:
        state.notes.append(f"the input of {target} is not saved: {error}")
        repro = _search_command(request, target)
    finding = _finding(target, search.failure, search.case, repro)
    finding = replace(
        finding,
        evidence={**finding.evidence, "examples": search.num_examples, "shrinks": search.num_shrinks},
        control=f"{search.num_examples - 1} other inputs before it" if search.num_examples > 1 else "",
    )
    if not search.is_repeatable:
        finding = replace(finding, message=f"{finding.message}; tried once more, it held")
    state.results.append(_result(target, _verdict(search.failure), (finding,), search=search))


def _replayed(request: FuzzRequest, supervisor: Supervisor) -> Result:
    saved, path = request.replay, request.replayed
    assert saved is not None
    assert path is not None
    start = time.perf_counter()
    outcome = _outcome(supervisor, saved.case)
    seconds = time.perf_counter() - start
    same = [failure for failure in outcome.failures if failure.property == saved.property]
    if not outcome.failures:
        verdict = Verdict.SKIP if outcome.discarded else Verdict.PASS
        notes = ("the saved input holds",) if not outcome.discarded else ()
        return replace(_result(saved.target, verdict, reason=outcome.discarded), seconds=seconds, notes=notes)
    failure = (*same, *outcome.failures)[0]
    if not same:
        failure = replace(failure, message=f"{failure.message}; it was saved for: {saved.message}")
    finding = _finding(saved.target, failure, saved.case, _replay_command(request, path, saved))
    return replace(_result(saved.target, _verdict(failure), (finding,)), seconds=seconds)


def _loaded(troubles: list[Measurement], request: FuzzRequest) -> list[Result]:
    """What went wrong while the subject was loaded, as the checks it belongs to."""
    found = findings(Examination(measurements=troubles), CommandLine.asked(request.examination_request, {}))
    return [Result(code=finding.code, name="loading", verdict=Verdict.FAIL, findings=(finding,)) for finding in found]


def _outcome(supervisor: Supervisor, case: Mapping[str, Any]) -> FuzzOutcome:
    """What came of a case; a hang or a death is a failure of it."""
    raise_if_interrupted()  # Hypothesis listens to the garbage collector, and Python swallows what comes up there
    answer = _asked(supervisor, case)
    if not isinstance(answer, Trouble):
        return FuzzOutcome.from_json(answer)
    if answer.kind == "timeout":
        failure = Failure(violation=Violation.HANGS, message=f"does not return: {answer.message}", where=answer.place)
    elif answer.kind == "died":
        failure = Failure(violation=Violation.DIES, message=answer.message, where=answer.place)
    else:
        message = f"{answer.phase} raises {answer.message}"
        failure = Failure(violation=Violation.RAISES, message=message, where=answer.place)
    return FuzzOutcome(failures=(failure,))


def _asked(supervisor: Supervisor, case: Mapping[str, Any] | None) -> dict[str, Any] | Trouble:
    return supervisor.fuzz(None if case is None else json.dumps(case))


def _check_impl(request: FuzzRequest, offers: Mapping[str, Any]) -> None:
    """Refuse an implementation that cannot serve there: no other is tried in its place. Raises UsageError."""
    impl, dtype = request.impl, request.examination_request.dtype
    if impl is None:
        return
    if not offers["is_nsa"]:
        raise UsageError("--impl names an implementation of nsa and has no effect with this --subject; leave it out")
    served, reason = offers["impls"][impl]
    if not served or (dtype is not None and dtype not in served):
        alone = f"it serves {', '.join(served)} on {request.examination_request.device}, got --dtype {dtype}"
        raise UsageError(f"--impl {impl}: {alone if served else reason}")


def _gap(target: Target, offers: Mapping[str, Any]) -> str:
    """Why a target cannot be tried on this subject; nothing when it can."""
    if offers["impl"] is not None and target in ("ranges", "forward"):
        return f"{target} has no implementations to choose from; --impl is for masks, select and attend"
    if offers["impl"] in KERNELS and target == "select":
        return f"plain torch chooses the blocks under {offers['impl']} too; try it with --impl vectorized"
    if offers["is_nsa"] and target != "ranges":
        return ""
    match target:
        case "ranges":
            return "" if "spans" in offers["seams"] else f"the subject offers no {target} of its own ({_NSAS_OWN})"
        case "masks":
            return f"the subject offers no {target} of its own ({_NSAS_OWN})"
        case "forward":
            return ""
    if target not in offers["seams"]:
        return f"the subject offers no {target}"
    missing = [name for name in ("l_sel", "n_sel") if name not in offers["sizes"]]
    return f"the subject's geometry has no {' and no '.join(missing)}" if missing else ""


def _verdict(failure: Failure) -> Verdict:
    return Verdict.TIMEOUT if failure.violation is Violation.HANGS else Verdict.FAIL


def _unfailed(target: Target, search: Search) -> Result:
    """PASS where something was tried, SKIP where nothing was or nothing could be decided."""
    if not search.num_examples:
        return _result(target, Verdict.SKIP, reason="nothing was tried")
    if search.num_discarded == search.num_examples:
        return _result(target, Verdict.SKIP, reason=f"no input could be judged: {search.discarded}", search=search)
    return _result(target, Verdict.PASS, search=search)


def _result(
    target: Target,
    verdict: Verdict,
    found: tuple[Finding, ...] = (),
    reason: str = "",
    search: Search | None = None,
) -> Result:
    notes: tuple[str, ...] = ()
    seconds = search.seconds if search is not None else 0.0
    if search is not None:
        rate = f", {search.num_examples / seconds:.0f}/s" if seconds >= 1 and not search.num_shrinks else ""
        notes = (f"{search.num_examples} inputs tried{rate}",)
        notes += (f"{search.num_shrinks} smaller ones",) if search.num_shrinks else ()
        notes += (f"{search.num_discarded} not judged: {search.discarded}",) if search.num_discarded else ()
    return Result(
        code=f"fuzz {target}",
        name=target,
        verdict=verdict,
        findings=found,
        reason=reason,
        seconds=seconds,
        notes=notes,
    )


def _finding(target: Target, failure: Failure, case: Mapping[str, Any], repro: str) -> Finding:
    shown = case_lines(read_case(json.dumps(case)))
    return Finding(
        code=registry.fuzzed(failure.violation).manual.code,
        message=failure.message[:_LONGEST_MESSAGE],
        where=failure.where,
        evidence={
            "target": target,
            "property": failure.property,
            "input": "\n".join(shown),
            **failure.evidence,
        },
        repro=repro,
    )


def _saved(request: FuzzRequest, target: Target, failure: Failure, case: dict[str, Any]) -> SavedCase:
    examination_request = request.examination_request
    source = Path(examination_request.config) if examination_request.config else None
    text = source.read_text(encoding="utf-8") if source is not None and source.is_file() else None
    return SavedCase(
        target=target,
        property=failure.property,
        message=failure.message[:_LONGEST_MESSAGE],
        spec=examination_request.spec,
        config=examination_request.config,
        config_text=text,
        input=examination_request.input,  # type: ignore[arg-type]
        width=examination_request.width,
        declared=list(examination_request.declared),
        device=examination_request.device,  # type: ignore[arg-type]
        dtype=examination_request.dtype,  # type: ignore[arg-type]
        seed=examination_request.seed,
        case=case,
    )


@contextmanager
def _placed(request: FuzzRequest) -> Iterator[Any]:
    """The assignment, with the configuration a file carries written where it can be read."""
    saved = request.replay
    if saved is None or saved.config_text is None:
        yield request.examination_request
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(saved.config_text, encoding="utf-8")
        yield replace(request.examination_request, config=str(path))


def _replay_command(request: FuzzRequest, path: Path, saved: SavedCase) -> str:
    return reproduce("fuzz", replay=path, subject=saved.spec, timeout=request.examination_request.timeout)


def _search_command(request: FuzzRequest, target: Target) -> str:
    examination_request = request.examination_request
    return reproduce(
        "fuzz",
        (target,),
        examples=request.examples,
        seed=examination_request.seed,
        subject=examination_request.spec,
        config=examination_request.config,
        input=examination_request.input,
        width=examination_request.width,
        spec=",".join(examination_request.declared) or None,
        dtype=examination_request.dtype,
        device=examination_request.device,
        timeout=examination_request.timeout,
        impl=request.impl,
    )


def _options(request: FuzzRequest) -> dict[str, Any]:
    return {
        "targets": list(request.targets),
        "examples": request.examples,
        "minutes": request.minutes,
        "seed": request.examination_request.seed,
        "device": request.examination_request.device,
        "dtype": request.examination_request.dtype,
        "timeout_seconds": request.examination_request.timeout,
        "impl": request.impl,
        "replay": str(request.replayed) if request.replayed else None,
    }


def _at_times(listen: Listener, num_targets: int) -> Callable[[Target, Search, Mapping[Target, Search]], None]:
    """Tells a person often and a log seldom."""
    pause = _SECONDS_BETWEEN_TICKS if is_terminal(sys.stderr) else _SECONDS_BETWEEN_LINES
    start = last = time.monotonic()

    def tell(target: Target, search: Search, searches: Mapping[Target, Search]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < pause:
            return
        last = now
        tried = sum(each.num_examples + each.num_shrinks for each in searches.values())
        doing = f"shrinking, {search.num_shrinks} tried" if search.num_shrinks else f"{search.num_examples} inputs"
        listen(f"{target}: {doing}, {tried / (now - start):.0f}/s", list(searches).index(target), num_targets)

    return tell
