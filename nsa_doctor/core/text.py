"""Numbers and lists in words."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

_MOST_NUMBERS = 6
_WHOLE = 10**15  # whole numbers below it are shown in full
_PLAIN_POWERS = 5
_MOST_BITS = 1000
_ENDLESS = 1e300


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def numbers(values: Iterable[int]) -> str:
    """Ascending; beyond six, the first five, how many more and the last."""
    ordered = sorted(values)
    if len(ordered) <= _MOST_NUMBERS:
        return joined([str(value) for value in ordered])
    shown = ", ".join(map(str, ordered[: _MOST_NUMBERS - 1]))
    return f"{shown} and {len(ordered) - _MOST_NUMBERS + 1} more up to {ordered[-1]}"


def short_number(value: float, digits: int = 3) -> str:
    """To so many digits, a power of ten where they would not show it: 0, 12.3, 4567, 1.2e-7, NaN, -Infinity."""
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:  # neither a float holds it, nor does Python spell it out
            return f"{'-' if value < 0 else ''}1e{round(value.bit_length() * math.log10(2))}"
        if abs(value) < _WHOLE:
            return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    if -3 <= int(power) < max(_PLAIN_POWERS, digits):
        return _trimmed(f"{value:.{max(0, digits - 1 - int(power))}f}")
    return f"{_trimmed(mantissa)}e{int(power)}"


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def short_count(count: float) -> str:
    """A count to three digits, with a letter for thousands and more: 128, 98.2k, 1.64M."""
    if not 10**4 <= abs(count) < 10**14:
        return short_number(count)
    mantissa, _, power = f"{count:.2e}".partition("e")
    thousands, rest = divmod(int(power), 3)
    return _trimmed(f"{float(mantissa) * 10**rest:.{2 - rest}f}") + "kMGT"[thousands - 1]


def short_bytes(count: float | None) -> str:
    """A size to three digits as people say it, or a dash where it is not known."""
    if count is None:
        return "-"
    amount, unit = count, "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if not 1000 <= abs(amount) < _ENDLESS:
            break
        amount, unit = amount / 1024, larger
    return f"{short_number(amount)} {unit}"


def escaped(text: str) -> str:
    """Text from a subject with everything a terminal would obey made visible."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def from_here(text: str) -> str:
    """The text with paths below the current folder as a person there would type them."""
    try:
        here = f"{Path.cwd()}/"
    except OSError:  # the folder is gone
        return text
    return text.replace(here, "") if here != "//" else text


def counted(count: int, name: str) -> str:
    """`1 limit`, `3 limits`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def plain_number(value: float) -> str:
    """A whole number in full, any other to four digits."""
    is_whole = value == value and abs(value) < _WHOLE and value == int(value)
    return f"{value or 0:,.0f}" if is_whole else short_number(value, 4)


def decimal(value: float) -> str:
    """Four digits behind the point, as people compare losses, where that shows them."""
    return f"{value:.4f}" if 0.01 <= abs(value) < 1e6 else short_number(value, 4)


def plain_rate(value: float) -> str:
    """So many a second: whole ones from a hundred on, three digits below."""
    return f"{value:,.0f}" if 100 <= abs(value) < _WHOLE else short_number(value)


def short_seconds(seconds: float) -> str:
    """A time to three digits: 12 µs, 3.4 ms, 1.25 s."""
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{short_number(seconds / least)} {unit}"
    return f"{short_number(seconds * 1e6)} µs"
