"""What a verdict rests on, in two lines: how much was examined and how often that finds a bug, and what it is not."""

from collections.abc import Iterator, Sequence

from nsa_doctor.core.power import FamilyRecall, Power
from nsa_doctor.core.text import counted, joined


def power_texts(power: Power) -> Iterator[str]:
    """The examination with its measured recall, then what was not examined."""
    yield f"{extent(power)}; {recall(power)}"
    if missing := [*power.not_examined, *power.cut_short]:
        yield f"not examined: {', '.join(missing)}"


def extent(power: Power) -> str:
    """Checks, calls, lengths, dtypes, modes, batch sizes, seeds and device."""
    if not power.calls:
        return f"{counted(power.checks, 'check')}, no call of the subject"
    parts = [
        counted(power.checks, "check"),
        counted(power.calls, "call"),
        f"{counted(len(power.lengths), 'length')} {_span(power.lengths)}{_each(power.lengths)}",
        joined(power.dtypes),
        joined(power.modes),
        f"batches {_span(power.batch_sizes)}",
        f"{'seed' if len(power.seeds) == 1 else 'seeds'} {', '.join(map(str, power.seeds[:_MOST_SEEDS]))}",
        power.device,
    ]
    return ", ".join(part for part in parts if part.strip())


def recall(power: Power) -> str:
    """`measured recall: planted bugs 9 of 10, FWD 27 of 27, for GRD alone not measured (commit abc, 2026-01-02)`."""
    known = [each for each in power.recall if each.of]
    unknown = [_named(each) for each in power.recall if not each.of and each.family != "unseen"]
    is_whole = any(each.family == "all" for each in known)
    missing = f"for {joined(unknown)} alone not measured" if is_whole else f"{', '.join(unknown)} not measured"
    said = [_share(each) for each in known] + ([missing] if unknown else [])
    doctor = ", ".join(part for part in (power.doctor, power.measured_on) if part)
    is_together = any(not each.measured for each in known)
    return f"measured recall: {', '.join(said) or 'none'}" + (f" ({doctor})" if is_together and doctor else "")


def _named(each: FamilyRecall) -> str:
    return _NAMES.get(each.family, each.family)


def _share(each: FamilyRecall) -> str:
    how = f"; {each.measured}" if each.measured else ""
    return f"{_named(each)} {each.hits} of {each.of} (at least {100 * each.low:.0f} %{how})"


def _span(values: Sequence[int]) -> str:
    return "" if not values else f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _each(lengths: Sequence[int]) -> str:
    """`, each to 256`: up to where none is left out, if that is some way."""
    known = set(lengths)
    first_missing = next(length for length in range(1, len(known) + 2) if length not in known)
    return f" (each to {first_missing - 1})" if first_missing > _SOME else ""


_NAMES = {"all": "planted bugs", "unseen": "real bugs that it had not seen"}
_MOST_SEEDS = 5
_SOME = 8
