"""`nsa-doctor throughput`: times and counts at several lengths in a child process, and what floors say of them."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.check import Command
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Report, Result
from nsa_doctor.core.finding import Verdict as Ended
from nsa_doctor.core.growth import fitted_exponent
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.core.report_facts import environment, subject_facts
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.core.spread import relative_spread
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.engine.conclusions import with_observed
from nsa_doctor.engine.floors import Floor, Floors, floors_for, judge
from nsa_doctor.engine.floors import FloorVerdict as Judged
from nsa_doctor.engine.session import Session
from nsa_doctor.isolation.postmortem import notes_of_left
from nsa_doctor.isolation.supervisor import Supervisor

REPEATS = 7
_CHECK_SECONDS = 120.0
_DEFAULT_CONFIG = "m7c_125m_fast_log"
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class ThroughputRequest:
    """Whom to time, at the assignment's lengths; no floors means those of the device, where it has any."""

    examination_request: ExaminationRequest
    repeats: int = REPEATS
    floors: Floors | None = None


@dataclass
class _State:
    facts: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    timed: list[dict[str, Any]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    floors: Floors | None = None


def throughput(request: ThroughputRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """Check that the subject is right, time it, judge; a KeyboardInterrupt keeps what was measured.

    Raises UsageError when the subject cannot be examined at all and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    state, interrupted = _State(floors=request.floors), False
    supervisor = Supervisor(request.examination_request)
    try:
        _work(request, supervisor, state, listen)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        supervisor.close()
    examination_request = request.examination_request
    return Report(
        command="throughput",
        subject=subject_facts(examination_request.spec, state.facts),
        options={
            "lengths": list(examination_request.lengths),
            "device": examination_request.device,
            "dtype": examination_request.dtype,
            "seed": examination_request.seed,
            "repeats": request.repeats,
            "timeout_seconds": examination_request.timeout,
            "floors": state.floors.name if state.floors else None,
        },
        environment=environment(state.facts),
        results=deduplicate(state.results, registry.entries()),
        notes=(*state.notes, *notes_of_left(supervisor.children)),
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
        throughput=_summary(state),
    )


def _work(request: ThroughputRequest, supervisor: Supervisor, state: _State, listen: Listener) -> None:
    session = Session(request.examination_request, frozenset({registry.answering(Fact.RAISED).manual.code}))
    session.load(supervisor)
    state.facts = session.facts
    if not state.facts:
        state.results += [
            _reproduced(result, request, state) for result in session.obstacles or session.results.values()
        ]
        return
    for measurement in session.examination.measurements:
        assert measurement.trouble is not None
        state.results.append(_troubled(measurement.trouble, measurement.point.length, request, state))
    if state.results:
        return
    lengths = request.examination_request.lengths
    correctness = [entry.manual.code for entry in registry.of_command(Command.THROUGHPUT)]
    total = len(correctness) + len(lengths) + 1
    for code in correctness:
        listen(f"checked {code}", len(state.results), total)
        own, observed = supervisor.check(code, request.examination_request.timeout, at_most=_CHECK_SECONDS).parted()
        state.results[:] = with_observed([*state.results, own], observed)
    if any(result.verdict in (Ended.FAIL, Ended.TIMEOUT) for result in state.results):
        state.notes.append("not timed: a subject that computes the wrong thing has no speed")
        return
    for length in lengths:
        answer = supervisor.time(length, request.repeats)
        if isinstance(answer, Trouble):
            state.results.append(_troubled(answer, length, request, state))
            return
        state.timed.append(answer)
        listen(f"timed S={length}", len(correctness) + len(state.timed), total)
    shares = supervisor.time_shares(lengths[-1])
    state.shares = {} if isinstance(shares, Trouble) else shares
    if state.floors is None:
        state.floors = floors_for(state.facts["environment"]["device_name"], request.examination_request.device)
    state.results.append(_held_to_floors(request, state))


def _held_to_floors(request: ThroughputRequest, state: _State) -> Result:
    """FAIL below a floor, SKIP where the times spread too wide to tell, or where no floor applies."""
    examination_request, manual = request.examination_request, registry.answering(Fact.BELOW_FLOOR).manual
    code, name = manual.code, manual.name
    config = "" if examination_request.spec else examination_request.config or _DEFAULT_CONFIG
    floors = [floor for floor in state.floors.floors if floor.config in ("", config)] if state.floors else []
    findings, unclear, held = [], [], 0
    for floor in floors:
        for row in state.timed:
            samples = samples_of(row, floor.quantity) if floor.seq in (0, row["length"]) else []
            if not samples:
                continue
            held += 1
            judged = judge(samples, floor)
            if judged.keeps is None:
                unclear.append(
                    f"{floor.quantity} at S={row['length']} is {judged.measured:.3g} for a limit of "
                    f"{floor.limit:g}, and half of the passes spread over {judged.spread:.0%}"
                )
            elif not judged.keeps:
                findings.append(_below(code, floor, row["length"], judged, state, request))
    if findings:
        return Result(code=code, name=name, verdict=Ended.FAIL).with_findings(findings)
    if unclear:
        return Result(code=code, name=name, verdict=Ended.SKIP, reason=f"too noisy to decide: {unclear[0]}")
    if not held:
        reason = (
            f"no floor for {state.facts['environment']['device_name']}, {config or 'this subject'} and these lengths"
        )
        return Result(code=code, name=name, verdict=Ended.SKIP, reason=reason, is_required=request.floors is not None)
    return Result(code=code, name=name, verdict=Ended.PASS)


def _below(code: str, floor: Floor, length: int, judged: Judged, state: _State, request: ThroughputRequest) -> Finding:
    assert state.floors is not None
    words = floor.quantity.replace("_", " ")
    return Finding(
        code=code,
        message=f"{words} is {judged.measured:.3g} at S={length}, and the limit is {floor.limit:g}: {floor.because}",
        evidence={
            "quantity": floor.quantity,
            "measured": judged.measured,
            "limit": floor.limit,
            "spread": judged.spread,
            "length": length,
        },
        repro=_repro(request, state, length, floors=state.floors.name),
    )


def _repro(request: ThroughputRequest, state: _State, length: int, **options: Any) -> str:
    repeats = None if request.repeats == REPEATS else request.repeats
    return CommandLine.asked(request.examination_request, state.facts).throughput(length, repeats=repeats, **options)


def _reproduced(result: Result, request: ThroughputRequest, state: _State) -> Result:
    """The result of a subject that could not be loaded, with the line that times it."""
    line = _repro(request, state, request.examination_request.lengths[0])
    return replace(result, findings=tuple(replace(finding, repro=line) for finding in result.findings))


def samples_of(row: Mapping[str, Any], quantity: str) -> list[float]:
    """The quantity of each repeated pass; empty where it was not measured."""
    if quantity == "slowdown":
        plain = row.get("dense_train") or row.get("dense_forward") or []
        own = (row.get("train") or row.get("forward") or []) if plain else []
        return [seconds / statistics.median(plain) for seconds in own]
    kind = quantity.partition("_")[0]
    tokens = 1 if kind == "decode" else row["length"]
    return [tokens / seconds for seconds in row.get(kind, [])]


def _summary(state: _State) -> dict[str, Any]:
    """Medians, spreads and exponents, with the samples they come from."""
    if not state.timed:
        return {}
    return {
        "rows": [_row(row) for row in state.timed],
        "exponents": {
            name: _exponent(state.timed, amount)
            for name, amount in (
                ("forward seconds", lambda row: _median(row.get("forward"))),
                ("train seconds", lambda row: _median(row.get("train"))),
                ("peak bytes", lambda row: row["peak_bytes"]),
                ("operations", lambda row: row["operations"]),
            )
        },
        "shares": state.shares,
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    quantities = [f"{kind}_tokens_per_second" for kind in ("forward", "train", "decode")]
    measured = {name: samples_of(row, name) for name in (*quantities, "slowdown")}
    medians = {name: statistics.median(samples) for name, samples in measured.items() if samples}
    return {
        **row,
        **medians,
        "spread": relative_spread(row.get("train") or row.get("forward") or []),
        "operations_per_token": row["operations"] / row["length"],
        "waits_per_token": row["waits"] / row["length"],
    }


def _exponent(
    rows: Sequence[Mapping[str, Any]], amount: Callable[[Mapping[str, Any]], float]
) -> dict[str, float] | None:
    found = fitted_exponent([row["length"] for row in rows], [amount(row) for row in rows])
    return None if found is None else asdict(found)


def _median(samples: Sequence[float] | None) -> float:
    return statistics.median(samples) if samples else -math.inf


def _troubled(trouble: Trouble, length: int, request: ThroughputRequest, state: _State) -> Result:
    manual = registry.answering(Fact.RAISED).manual
    finding = Finding(
        code=manual.code,
        message=f"{trouble.message} at S={length}",
        where=trouble.place,
        evidence={"kind": trouble.kind, **error_evidence(trouble.message)},
        repro=_repro(request, state, length),
    )
    verdict = Ended.TIMEOUT if trouble.kind == "timeout" else Ended.FAIL
    return Result(code=manual.code, name=manual.name, verdict=verdict, findings=(finding,))
