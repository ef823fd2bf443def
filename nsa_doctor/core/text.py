"""Numbers and lists in words."""

from collections.abc import Iterable, Sequence
from pathlib import Path

_MOST_NUMBERS = 6


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


def short_count(count: int) -> str:
    """A count in at most four characters: 128, 98k, 1.6M."""
    for limit, unit, symbol in ((10**4, 1, ""), (10**6, 10**3, "k"), (10**9, 10**6, "M")):
        if count < limit:
            amount = count / unit
            return f"{amount:.1f}{symbol}" if symbol and amount < 10 else f"{amount:.0f}{symbol}"
    return f"{count / 10**9:.1f}G"


def short_number(value: float) -> str:
    """A magnitude in two digits: 2.3, 0.41, 1e5."""
    text = f"{value:.2g}"
    if "e" not in text:
        return text
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def short_bytes(count: int | None) -> str:
    """A size as people say it, or a dash where it is not known."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KB", "MB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GB"


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
    return f"{value:,.0f}" if value == value and abs(value) < 1e15 and value == int(value) else f"{value:.4g}"
