"""Option values to a request, each refused in one sentence when it cannot be."""

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path

from nsa_doctor.lengths import parse_lengths
from nsa_doctor.measurement import DTYPES, VALUES
from nsa_doctor.sweep import SweepRequest

_LARGEST_SEED = 2**32 - 1
_LARGEST_WIDTH = 2**24
_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class OptionError(ValueError):
    """An option has a value it cannot have; one sentence names the option, the value and what is allowed."""


def sweep_request(
    *,
    seq: str,
    dtype: str | None,
    device: str,
    config: str | None,
    subject: str | None,
    input_kind: str | None,
    width: int | None,
    values: str,
    seed: int,
    forward_only: bool,
    boundaries: bool,
    timeout: float,
) -> SweepRequest:
    """Check what `sweep` was given; raises OptionError."""
    try:
        lengths = tuple(parse_lengths(seq))
    except ValueError as error:
        raise OptionError(f"--seq: {error}") from error
    if subject is not None:
        if not _SPEC.fullmatch(subject):
            raise OptionError(f"--subject must be package.module:factory, got {subject!r}")
        if config is not None:
            raise OptionError("--config is for the built-in subject and has no effect with --subject; leave one out")
    elif input_kind is not None:
        raise OptionError("--input is for a --subject; the built-in one takes embeddings; leave it out")
    elif width is not None:
        raise OptionError("--width is for a --subject; the built-in one has its own; leave it out")
    if width is not None and not 1 <= width <= _LARGEST_WIDTH:
        raise OptionError(f"--width must be from 1 to {_LARGEST_WIDTH}, got {width}")
    if not 0 <= seed <= _LARGEST_SEED:
        raise OptionError(f"--seed must be from 0 to {_LARGEST_SEED}, got {seed}")
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    return SweepRequest(
        lengths=lengths,
        dtypes=() if dtype is None else _several("--dtype", dtype, DTYPES),
        values=_several("--values", values, VALUES),
        device=_one("--device", device, ("cpu", "cuda")),
        config=config,
        spec=subject,
        input=None if input_kind is None else _one("--input", input_kind, ("embeddings", "tokens")),
        width=width,
        seed=seed,
        forward_only=forward_only,
        boundaries=boundaries,
        timeout=timeout,
    )


def report_format(form: str | None, output: Path | None) -> str:
    """The format asked for; when none was, what the file's name says."""
    if form is None:
        return "json" if output is not None and output.suffix == ".json" else "terminal"
    return _one("--format", form, ("terminal", "json"))


def _several(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_one(option, word.strip(), allowed) for word in text.split(",")))


def _one(option: str, word: str, allowed: Sequence[str]) -> str:
    if word in allowed:
        return word
    near = difflib.get_close_matches(word, allowed, n=1)
    hint = f"did you mean {near[0]}" if near else f"allowed are {', '.join(allowed)}"
    raise OptionError(f"{option} cannot be {word!r}: {hint}")
