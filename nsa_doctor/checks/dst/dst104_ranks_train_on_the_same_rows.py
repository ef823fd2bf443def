"""DST104 ranks-train-on-the-same-rows

Detects: processes of one run whose batches are the same at the same steps.
Matters: each computes the gradient of the others: a run of N processes costs N times one and learns what one does.
Fix: give the loader the rank and the number of processes, and deal the rows of one order out by them.

Example:
    # faulty
    loader = DataLoader(rows, batch_size=8, generator=torch.Generator().manual_seed(0), shuffle=True)
    # correct
    sampler = DistributedSampler(rows, num_replicas=world_size, rank=rank, seed=0)
    loader = DataLoader(rows, batch_size=8, sampler=sampler)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.shared_rows import FEWEST, comparable_steps, shared_rows
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import numbers
from nsa_doctor.testing.ranks import trained_by_two


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if len(record.ranks) < 2:
        raise NotApplicableError("the heartbeats are of one process")
    if not record.is_own:
        raise NotApplicableError("processes of another trainer may share their rows on purpose")
    if comparable_steps(record) < FEWEST:
        raise NotApplicableError(f"fewer than {FEWEST} steps of two processes log a checksum of their batch")
    found = shared_rows(record)
    if not found:
        return
    first = found[0]
    others = f"; so do {len(found) - 1} more groups of ranks" if len(found) > 1 else ""
    yield Finding(
        message=(
            f"ranks {numbers(first.ranks)} train on the same rows: their first micro-batches are alike at "
            f"{first.alike} of {first.steps} steps from step {first.step} on{others}"
        ),
        evidence={
            "run": subject.name,
            "rank": first.ranks[1],
            "alike_ranks": len(first.ranks),
            "step": first.step,
            "alike": first.alike,
            "steps": first.steps,
            "ranks": record.world_size,
        },
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    return trained_by_two("same rows")


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke")
