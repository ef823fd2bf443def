"""Wrong functions are found, and the finding names what is wrong; without a spec, what can be told without one is."""

import pytest

from nsa_doctor.core.finding import Result
from tests.nsa_doctor.functions.examined import results, subject_of
from tests.nsa_doctor.functions.wrong import WRONG, flash


def first(ended: dict[str, Result]) -> tuple[str, str]:
    """Code and tensor of the first finding."""
    finding = next(each for result in ended.values() for each in result.findings)
    return finding.code, str(finding.evidence.get("tensor", ""))


@pytest.mark.parametrize("slip", WRONG)
def test_a_wrong_function_is_found_by_the_check_that_says_what_is_wrong(slip: str) -> None:
    spec, dtype, code, tensor = WRONG[slip]
    profile = "quick" if code == "FUN303" else "smoke"
    ended = results(subject_of(flash(slip), "flash", spec, dtype=dtype, profile=profile))
    found = [each for result in ended.values() for each in result.findings]
    assert found, {code: result.reason for code, result in ended.items()}
    assert first(ended)[0] == code, [each.message for each in found]
    assert not tensor or first(ended)[1] == tensor, [each.message for each in found]
