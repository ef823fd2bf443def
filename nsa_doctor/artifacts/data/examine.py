"""`nsa-doctor data`: a source of batches is opened in a process of its own, and what came of it is a report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nsa_doctor.artifacts.data.request import DataRequest
from nsa_doctor.core import registry
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.frames import FrameFilter, top_package
from nsa_doctor.core.identity import commit_of, version_of
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import is_doctors
from nsa_doctor.core.report_facts import environment
from nsa_doctor.core.reproduce import reproduce
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError
from nsa_doctor.isolation.worker_process import WorkerProcess, counting

Listener = Callable[[str, int, int], None]
_SPARE_SECONDS = 30.0  # without a sign of life, beyond the limit for a batch
_USUAL_LIMIT = 120.0


@dataclass(frozen=True, kw_only=True)
class DataExamined:
    """The end of every check of a source, and what is known of the source."""

    results: tuple[Result, ...] = ()
    subject: dict[str, Any]
    expected: dict[str, Any]
    interrupted: bool = False


def data(request: DataRequest, listen: Listener = lambda text, done, total: None) -> Report:
    """Examine, conclude; a KeyboardInterrupt ends it early.

    Raises UsageError for a source that cannot be examined at all, and InternalError when the doctor's code fails.
    """
    start = time.perf_counter()
    examined = examine_data(request, listen)
    return Report(
        command="data",
        subject=examined.subject,
        options={"batches": request.num_batches, "ranks": request.num_ranks, **examined.expected},
        environment=environment({}),
        results=examined.results,
        seconds=time.perf_counter() - start,
        interrupted=examined.interrupted,
    )


def examine_data(request: DataRequest, listen: Listener = lambda text, done, total: None) -> DataExamined:
    """Every check asked for; a source that hangs for good or kills its process is a finding. Raises as `data` does."""
    subject = {"name": request.spec or request.config or "data", "options": list(request.words)}
    tell = counting(listen, _steps(request))
    patience = (request.seconds or _USUAL_LIMIT) + _SPARE_SECONDS
    try:
        with WorkerProcess("nsa_doctor.worker.data_main") as child:
            answer = child.ask(asdict(request), patience, listen=tell)
    except KeyboardInterrupt:
        return DataExamined(subject=subject, expected={}, interrupted=True)
    except (WorkerHungError, WorkerDiedError) as failure:
        return DataExamined(results=_failed(request, failure), subject=subject, expected={})
    results = tuple(Result.from_json(result) for result in answer["results"])
    return DataExamined(results=results, subject=_identified(answer["subject"]), expected=answer["expected"])


def _identified(subject: dict[str, Any]) -> dict[str, Any]:
    """With what only this process can say: of the code that opened the data, the version and the commit."""
    ours = {"version": version_of(("nsa",)), "commit": commit_of(__file__)}
    identity = {name: value for name, value in {**ours, **subject["identity"]}.items() if value}
    return {**subject, "identity": identity}


def _steps(request: DataRequest) -> int:
    """How often a source that can do everything is opened."""
    return request.num_ranks + 5


def _failed(request: DataRequest, failure: WorkerHungError | WorkerDiedError) -> tuple[Result, ...]:
    """What its end means: batches do not come, and nothing else is known."""
    lines = failure.crash.dump.splitlines()  # the checks that wait are not what hangs
    dump = "\n".join(line for line in lines if not is_doctors(line.partition('"')[2]))
    own = FrameFilter(top_package(request.spec)).of_dump(dump)
    where = Place(file=own[0].file, line=own[0].line, function=own[0].function) if own else Place()
    at = f" at {where.line_text} ({where.function})" if own else ""
    message = f"the process that opens the data {_end_of(failure, at)}"
    results, never_came = [], registry.answering(Fact.NO_BATCHES).manual.code
    for name, manual in registry.manuals().items():
        if name not in request.codes:
            continue
        if name == never_came:
            finding = Finding(
                message=message,
                where=where,
                evidence={"kind": "died"},
                repro=reproduce("data", request.words),
                code=name,
            )
            results.append(Result(code=name, name=manual.name, verdict=Verdict.FAIL, findings=(finding,)))
        else:
            reason = "means nothing where batches do not come"
            results.append(Result(code=name, name=manual.name, verdict=Verdict.SKIP, reason=reason))
    return tuple(results)


def _end_of(failure: WorkerHungError | WorkerDiedError, at: str) -> str:
    if isinstance(failure, WorkerHungError):
        return f"gives no sign of life any more: it is{at or ' somewhere'}"
    return f"{str(failure).removeprefix('the process ')}{at}"
