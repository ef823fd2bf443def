"""Which evaluations a run of nsa's should have logged by now."""

from collections.abc import Mapping

from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.sessions import endings, is_step, sessions_of


def evaluations_due(record: RunRecord) -> set[int]:
    """Steps that the run was to be evaluated at, and that it went on from: every so many, and the first and the last.

    None where the configuration asks for no evaluation, or is not one of nsa's.
    """
    train = record.configuration.get("train")
    if not record.is_own or not isinstance(train, Mapping) or not record.declared("eval_batches"):
        return set()
    stride = int(record.declared("eval_every") or 0)
    made: set[int] = set()
    due: set[int] = set()
    for session in sessions_of(record):
        steps = [beat.step for beat in session.beats if is_step(beat) and beat.step is not None]
        made |= set(steps)
        due |= {step for step in steps if stride and step % stride == 0 and step < max(steps)}
        due |= {0} if steps and min(steps) == 1 and not session.is_resumed else set()
    is_finished = any(end.kind == "finished" and end.rank == 0 for end in endings(record))
    return due | ({max(made)} if made and is_finished else set())


def evaluations_missed(record: RunRecord) -> list[int]:
    """Those of them that it does not tell."""
    return sorted(evaluations_due(record) - {each.step for each in record.evaluations if each.step is not None})
