"""Every check of checkpoints finds what it plants, and tells it alone; two healthy checkpoints are silent."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.testing.checkpoints import GATE, healthy, holding

OF_CHECKPOINTS = [code for code, entry in registry.entries().items() if entry.examines == "checkpoint"]


def written_checkpoint() -> CheckpointSubject:
    """A checkpoint that holds what a check plants."""
    return CheckpointSubject(name="step_1.safetensors", checkpoint=lambda: Reading(path=""), options=("it",))


def read_once(subject: CheckpointSubject) -> CheckpointSubject:
    """The same for several checks: a process reads it for the first of them alone."""
    return replace(subject, checkpoint=cache(subject.checkpoint))


@pytest.fixture(scope="module")
def healthy_checkpoints() -> CheckpointSubject:
    """Two that are healthy, of which the later has moved a little."""
    moved = {
        name: (shape, tuple(value * 1.01 + 0.01 for value in values)) for name, (shape, values) in healthy().items()
    }
    return read_once(holding(written_checkpoint(), healthy(), moved))


def complaints_of_a_file(code: str, sound_ones: CheckpointSubject) -> Iterator[str]:
    """What is wrong with a check of checkpoints, seen on two that are healthy and on the one that it plants."""
    check = registry.load(code)
    sound = judge(check, sound_ones)
    if sound.verdict is not Verdict.PASS:
        yield f"{sound.verdict} on healthy checkpoints: {sound.reason or sound.findings}"
    planted = read_once(check.planted(written_checkpoint()))
    faulty = judge(check, planted)
    if (faulty.verdict, len(faulty.findings)) != (Verdict.FAIL, 1):
        yield f"{faulty.verdict} with {len(faulty.findings)} findings on what it plants: {faulty.reason}"
    for finding in faulty.findings:
        if finding.code != code or finding.repro != "nsa-doctor gate-stats it":
            yield f"the finding bears the code {finding.code} and is repeated by {finding.repro!r}"
        if finding.where.module not in (GATE, f"{GATE}.fc2") and not code.startswith(("CKP101", "CKP102")):
            yield f"the finding is placed at {finding.where}, not where the bug is planted"
    others = [other for other in OF_CHECKPOINTS if other[:3] == "GAT" and other != code]
    also = [other for other in others if judge(registry.load(other), planted).findings]
    if also:
        yield f"{', '.join(also)} tell the same bug again"


@pytest.mark.parametrize("code", OF_CHECKPOINTS)
def test_a_check_of_checkpoints_finds_what_it_plants_and_nothing_else(
    code: str, healthy_checkpoints: CheckpointSubject
) -> None:
    assert list(complaints_of_a_file(code, healthy_checkpoints)) == []
