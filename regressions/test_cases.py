"""Every case, as `nsa-doctor regressions` runs it: the bug is absent, and found where it is planted."""

from collections.abc import Iterator

import pytest

from nsa_doctor.cases.catalogue import Card, cards
from nsa_doctor.cases.fork_server import Starter
from nsa_doctor.cases.running import CasesRequest, run_cases

SECONDS = 60.0


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as started:
        yield started


@pytest.mark.parametrize("card", cards().values(), ids=cards())
def test_a_reported_bug_is_absent_and_found_when_planted(card: Card, starter: Starter) -> None:
    (outcome,) = run_cases(CasesRequest(cards=(card,), seconds=SECONDS), starter=starter)
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "absent", outcome.reason
