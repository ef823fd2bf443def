"""Has steps of a training run computed again, in a process of its own, for checks to compare."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.replay_result import Replay
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.registry import Entry
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError, WorkerSlowError
from nsa_doctor.isolation.worker_process import WorkerProcess, counting

_PATIENCE = 120.0  # without a sign of life
_PASSES = 2

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class RecomputeRequest:
    """On which device, and how many seconds it may take."""

    device: str = "cpu"
    seconds: float = 900.0


def is_asked_for(entries: Iterable[Entry]) -> bool:
    """Whether a check among these compares steps that are made again."""
    return any(Fact.REPLAYED_STEPS in entry.answers for entry in entries)


def with_steps_again(record: RunRecord, request: RecomputeRequest, listen: Listener) -> RunRecord:
    """The run with what computing some of its steps again gave, or why that gave nothing.

    Raises KeyboardInterrupt, and InternalError when the doctor's own code fails.
    """
    if not record.is_own:
        return replace(record, replay=Replay(reason="it is no run of nsa.train"))
    saved = {each.step for each in record.saved}
    evaluated = sorted({each.step for each in record.evaluations if each.step is not None and each.step in saved})
    asked = {"folder": str(Path(record.folder).absolute()), "evaluated": evaluated, "device": request.device}
    tell = counting(listen, _PASSES * (1 + bool(evaluated)))
    try:
        with WorkerProcess("nsa_doctor.worker.replay_main") as child:
            answer = child.ask(asked, _PATIENCE, request.seconds, tell)
    except WorkerDiedError as death:
        return replace(record, replay=Replay(reason=str(death)))
    except (WorkerHungError, WorkerSlowError):
        reason = f"they were not made within {request.seconds:g} s, or nothing was heard for {_PATIENCE:g} s"
        return replace(record, replay=Replay(reason=reason))
    return replace(record, replay=Replay.from_json(answer))
