"""Whatever number is shown, what stands there is within one per cent of it, or says its order of magnitude."""

import math
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsa_doctor.core.text import decimal, plain_number, plain_rate, short_bytes, short_count, short_number
from nsa_doctor.render.summary import scalar

FORMATS: dict[str, Callable[[float], str]] = {
    "decimal": decimal,
    "plain number": plain_number,
    "plain rate": plain_rate,
    "scalar": scalar,
    "short bytes": short_bytes,
    "short count": short_count,
    "short number": short_number,
}
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, " B": 1, " KB": 2**10, " MB": 2**20, " GB": 2**30, " TB": 2**40}
LONGEST = 22


def read(text: str) -> float:
    """The number that a reader takes it for."""
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit).replace(",", "")) * UNITS[unit]
    return float(text.replace(",", ""))


@pytest.mark.parametrize("name", FORMATS)
@given(value=st.floats() | st.integers() | st.floats(min_value=0, max_value=1e7))
@example(value=-0.0)
@example(value=999_999.5)
@example(value=120_000)
@example(value=1e308)
@example(value=1.795e308)
@example(value=5e-324)
@example(value=1_099)
def test_a_number_that_is_shown_is_the_number(name: str, value: float) -> None:
    shown = FORMATS[name](value)
    assert len(shown) <= LONGEST
    if isinstance(value, float) and not math.isfinite(value):
        assert read(shown) == value or math.isnan(value)
        return
    most = sys.float_info.max  # "1.8e308" is what stands there of 1.795e308, and more than a float holds
    assert math.isclose(max(-most, min(most, read(shown))), value, rel_tol=0.01)


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_of_thousands_of_digits_is_shown_by_its_magnitude(name: str) -> None:
    assert "1e5000" in FORMATS[name](10**5000) or name == "short bytes"
    assert len(FORMATS[name](-(10**5000))) < LONGEST


@pytest.mark.parametrize("name", FORMATS)
def test_zero_has_no_sign(name: str) -> None:
    assert FORMATS[name](-0.0).removesuffix(" B") == "0"
