"""Every case, as `nsa-doctor regressions` runs it: the bug is absent, and found where it is planted."""

from collections.abc import Iterator

import pytest

from nsa_doctor.cases.catalogue import Card, cards
from nsa_doctor.cases.running import CasesRequest, run_cases, warm_process
from nsa_doctor.isolation.worker_process import WorkerProcess

SECONDS = 60.0


@pytest.fixture(scope="module")
def warm() -> Iterator[WorkerProcess]:
    with warm_process() as process:
        yield process


@pytest.mark.parametrize("card", cards().values(), ids=cards())
def test_a_reported_bug_is_absent_and_found_when_planted(card: Card, warm: WorkerProcess) -> None:
    (outcome,) = run_cases(CasesRequest(cards=(card,), seconds=SECONDS), warm=warm)
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "absent", outcome.reason
