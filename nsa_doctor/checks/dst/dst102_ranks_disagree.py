"""DST102 ranks-disagree

Detects: processes that report different losses or learning rates of one step, or hold different parameters.
Matters: each trains a model of its own from then on, and their averaged gradients belong to none.
Fix: look for what only one of them did: an update outside the exchange, an unsynchronised buffer, another seed.

Example:
    # faulty
    torch.manual_seed(rank)  # other weights on every rank, and nothing makes them equal
    model = Transformer(config)
    # correct
    torch.manual_seed(config.seed)
    model = DistributedDataParallel(Transformer(config))
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.rank_consistency import comparable, disagreement
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.testing.ranks import trained_by_two


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if len(record.ranks) < 2:
        raise NotApplicableError("the heartbeats are of one process")
    found = disagreement(record)
    if found is None:
        if not record.is_own and not comparable(record):
            raise NotApplicableError("each process logs the loss of its own batches, which cannot be compared")
        return
    if found.parameter:
        message = f"rank {found.rank} holds another {found.parameter} than rank 0 after step {found.step}"
    else:
        name = found.quantity.replace("_", " ")
        message = (
            f"rank {found.rank} reports the {name} {found.own:.6g} of step {found.step}, rank 0 {found.others:.6g}"
        )
    yield Finding(
        message=message,
        where=Place(module=found.parameter.rpartition(".")[0]),
        evidence={
            "run": subject.name,
            "rank": found.rank,
            "step": found.step,
            "quantity": found.quantity,
            "own": found.own,
            "others": found.others,
        },
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    return trained_by_two("drifts")


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke")
