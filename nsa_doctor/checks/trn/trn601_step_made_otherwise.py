"""TRN601 step-made-otherwise

Detects: a step of nsa.train whose loss, gradient or weights are not what plain torch makes of the checkpoint before
    it: other targets, a micro-batch left out, another decay, clipping or rate, a parameter that the optimizer misses.
Matters: the loss falls all the same, only slower or to another place, and no log shows it.
Fix: hold the loss, the accumulation of gradients and the optimizer's groups to the configuration, one at a time.

Example:
    # faulty
    for part in parts[:-1]:  # one micro-batch is left out
        (loss_of(part) / len(parts)).backward()
    # correct
    for part in parts:
        (loss_of(part) / len(parts)).backward()
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.replay_compare import Departure, OtherRowsError, departure, has_logged, nearness
from nsa_doctor.artifacts.training_run.replay_result import Replay
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.testing.training_runs import trained

_MOST_NAMES = 3


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    replay = subject.record.replay
    if replay is None:
        raise NotApplicableError("no step of the run was computed again (nsa-doctor watch RUN_DIR --recompute)")
    if replay.reason:
        raise NotComparableError(f"no step can be computed again: {replay.reason}")
    try:
        found = departure(subject.record, replay)
    except OtherRowsError as error:
        raise NotComparableError(str(error)) from error
    if found is not None:
        yield Finding(
            message=_message(subject, found, replay),
            where=Place(module=found.names[0].rpartition(".")[0]) if found.names else Place(),
            evidence={"run": subject.name, **_evidence(found)},
            repro=subject.recomputed(replay.device),
        )
    elif not has_logged(subject.record, replay):
        raise NotComparableError(f"the run logs no step after its checkpoint of step {replay.first}")
    else:
        yield Note(message=f"computed again, {replay.span} as logged: {nearness(subject.record, replay)}")


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.optimizer import make_optimizer

    def decays_more(model: Any, train: Any) -> Any:
        return make_optimizer(model, train.model_copy(update={"weight_decay": 100 * train.weight_decay}))

    seams = {"nsa.train.setup.make_optimizer": decays_more}
    return trained(seams=seams, steps=4, save_every=1, eval_every=0, weight_decay=0.1, is_computed_again=True)


def _message(subject: RunSubject, found: Departure, replay: Replay) -> str:
    start = f"computed again from the checkpoint of step {replay.first}"
    if found.kind == "loss":
        return f"step {found.step} lost {found.recorded:.6g}, and {found.replayed:.6g} {start}"
    if found.kind == "gradient":
        return (
            f"the gradient of step {found.step} had the norm {found.recorded:.6g}, and {found.replayed:.6g} {start}; "
            "its loss is the same"
        )
    if found.kind == "evaluation":
        return (
            f"the held-out loss of step {found.step} was {found.recorded:.6g}, and {found.replayed:.6g} with the "
            "weights of its checkpoint"
        )
    others, first = len(found.names) - 1, replay.first + 1
    more = f", and so did {others} more of {len(replay.moves)} parameters" if others else ", and it alone"
    course = f"{replay.span} {'leads' if first == found.step else 'lead'}"
    is_logged = any(beat.step == first for beat in subject.record.steps)
    same = f"; loss and gradient of step {first} are the same" if is_logged else ""
    return (
        f"{found.names[0]} ended {found.apart:.3g} from where {course}, which is {found.replayed:.3g} from its "
        f"start{more}{same}"
    )


def _evidence(found: Departure) -> dict[str, Any]:
    names = {"parameters": ", ".join(found.names[:_MOST_NAMES])} if found.names else {}
    return {"property": found.kind, "step": found.step, "logged": found.recorded, "recomputed": found.replayed, **names}


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="run",
    profile="smoke",
    explained_by=("TRN301", "TRN302"),
    priority=880,
    answers=("replayed steps",),
)
