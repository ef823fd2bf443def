"""What a verdict rests on: how much was examined, how often the doctor finds such bugs, and what was not looked at."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FamilyRecall:
    """How many of so many known bugs of a family of checks the doctor found, with the 95 % interval of the rate.

    measured: on what, with which doctor and when, where that is another measurement than that of the rest.
    """

    family: str
    hits: int
    of: int
    low: float
    high: float
    measured: str = ""


@dataclass(frozen=True, kw_only=True)
class Power:
    """The examination behind a verdict.

    `checks` ended with a result, in `calls` of the subject at `lengths`, in `dtypes` and `modes`, on batches of
    `batch_sizes` rows, with weights and inputs of `seeds`, on `device`. `recall` is measured on known bugs with
    `doctor` on `measured_on`, of `all`, of each family that was examined and of real bugs as yet `unseen`; `of` is 0
    where none was measured.
    `not_examined` says what no check looked at, `cut_short` what was not reached, and why.
    """

    checks: int
    calls: int
    lengths: tuple[int, ...]
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    device: str
    recall: tuple[FamilyRecall, ...]
    doctor: str
    measured_on: str
    not_examined: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
