"""What `nsa-doctor data` was asked for, as plain data that travels to the process that opens the source."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from nsa_doctor.core import registry
from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.nearest import one_of

_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_BATCHES, _MOST_RANKS = 100_000, 1024
_LARGEST = 2**31 - 1
_USUAL = {"batches": 16, "ranks": 2}


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A configuration with its changes, or a factory, or a factory checked by a configuration; and how much to look at.

    What is None is left to the configuration, or is not known. codes: the checks to make. words: the same again.
    """

    config: str | None = None
    changes: tuple[str, ...] = ()
    spec: str | None = None
    num_batches: int = _USUAL["batches"]
    num_ranks: int = _USUAL["ranks"]
    seconds: float | None = None
    targets: Literal["next", "same"] | None = None
    seq_len: int | None = None
    vocab_size: int | None = None
    batch_size: int | None = None
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def data_request(
    *,
    config: str | None,
    dataset: str | None = None,
    changes: Sequence[str] = (),
    subject: str | None = None,
    batches: int = _USUAL["batches"],
    ranks: int = _USUAL["ranks"],
    timeout: float | None = None,
    targets: str | None = None,
    seq_len: int | None = None,
    vocab_size: int | None = None,
    batch_size: int | None = None,
) -> DataRequest:
    """Check what the command was given; raises OptionError."""
    if config is None and subject is None:
        raise OptionError("give --config FILE, or --subject package.module:factory")
    if subject is not None and not _SPEC.fullmatch(subject):
        raise OptionError(f"--subject must be package.module:factory, got {subject!r}")
    if dataset is not None and subject is not None:
        raise OptionError("--dataset is for the loader of nsa and has no effect with --subject; leave one out")
    if changes and config is None:
        raise OptionError("--set changes a --config, and none is given")
    if targets is not None:
        one_of("--targets", targets, ("next", "same"))
    given = {"--targets": targets, "--seq-len": seq_len, "--vocab-size": vocab_size, "--batch-size": batch_size}
    for name, value in given.items():
        if value is not None and subject is None:
            raise OptionError(
                f"{name} is for a --subject; the configuration says it of the loader of nsa; leave it out"
            )
        if isinstance(value, int) and not 1 <= value <= _LARGEST:
            raise OptionError(f"{name} must be from 1 to {_LARGEST}, got {value}")
    for name, count, most in (("--batches", batches, _MOST_BATCHES), ("--ranks", ranks, _MOST_RANKS)):
        if not 1 <= count <= most:
            raise OptionError(f"{name} must be from 1 to {most}, got {count}")
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise OptionError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    all_changes = (*([f"data.dataset={_quoted(dataset)}"] if dataset is not None else ()), *changes)
    asked = {"--config": config, "--dataset": dataset, "--subject": subject, **given}
    words = [word for name, value in asked.items() if value is not None for word in (name, str(value))]
    words += [word for change in changes for word in ("--set", change)]
    words += ["--batches", str(batches)] if batches != _USUAL["batches"] else []
    words += ["--ranks", str(ranks)] if ranks != _USUAL["ranks"] else []
    words += ["--timeout", repr(timeout)] if timeout is not None else []
    return DataRequest(
        config=config,
        changes=all_changes,
        spec=subject,
        num_batches=batches,
        num_ranks=ranks,
        seconds=timeout,
        targets=cast(Literal["next", "same"] | None, targets),
        seq_len=seq_len,
        vocab_size=vocab_size,
        batch_size=batch_size,
        codes=tuple(entry.manual.code for entry in registry.of_kind("data")),
        words=tuple(words),
    )


def _quoted(text: str) -> str:
    return f"'{text.replace(chr(39), chr(39) * 2)}'"
