"""Option values to a request, each refused in one sentence when it cannot be."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from nsa_doctor.cli.function_options import function_words
from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions
from nsa_doctor.cli.subject_names import in_place_of_path, is_named
from nsa_doctor.core import registry
from nsa_doctor.core.check import PROFILES, Profile
from nsa_doctor.core.declared import declarations
from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.examination_request import COMPILE_SECONDS, ExaminationRequest
from nsa_doctor.core.function_spec import function_spec
from nsa_doctor.core.lengths import parse_lengths
from nsa_doctor.core.like import HUGGING_FACE
from nsa_doctor.core.measurement import DTYPES, VALUES
from nsa_doctor.core.nearest import one_of
from nsa_doctor.core.registry import prefixes
from nsa_doctor.engine.floors import FloorsError, load_floors
from nsa_doctor.engine.run import RunRequest
from nsa_doctor.engine.sweep import SweepRequest
from nsa_doctor.engine.throughput import ThroughputRequest
from nsa_doctor.render.formats import FORMATS, format_of

_LARGEST_SEED = 2**32 - 1
_LARGEST_WIDTH = 2**24
_MOST_JOBS = 256
_MOST_REPEATS = 10_000
_USUAL_JOBS = 4
_LENGTHS_TO_ASK_AT = (64, 16)
_ENTRY_POINTS = "nsa_doctor.subjects"


def examined(
    whom: SubjectOptions,
    *,
    device: str,
    seed: int,
    timeout: float,
    compile_timeout: float = COMPILE_SECONDS,
    dtype: str | None = None,
    profile: str = "quick",
    function: FunctionOptions | None = None,
) -> ExaminationRequest:
    """Check the options that say whom to examine and how, which most commands have; raises OptionError.

    `function` are the options of a command that examines functions too.
    """
    words = function_words(whom, function)
    subject = None if whom.subject is None else _spec(whom.subject, function is not None) if not words else whom.subject
    if subject is not None:
        if whom.config is not None:
            raise OptionError("--config is for the built-in subject and has no effect with --subject; leave one out")
    elif whom.input_kind is not None:
        raise OptionError("--input is for a --subject; the built-in one takes embeddings; leave it out")
    elif whom.width is not None:
        raise OptionError("--width is for a --subject; the built-in one has its own; leave it out")
    elif whom.spec is not None:
        raise OptionError("--spec is for a --subject; the built-in one is causal; leave it out")
    elif whom.train is not None:
        raise OptionError("--train is for a --subject; the built-in one has its own; leave it out")
    if whom.train is not None and not is_named(whom.train):
        raise OptionError(f"--train must be package.module:function, got {whom.train!r}")
    if whom.size is not None and not (subject or "").startswith(HUGGING_FACE):
        raise OptionError("--size is for a --subject hf:…, a model of transformers; leave it out")
    if whom.width is not None and not 1 <= whom.width <= _LARGEST_WIDTH:
        raise OptionError(f"--width must be from 1 to {_LARGEST_WIDTH}, got {whom.width}")
    if not 0 <= seed <= _LARGEST_SEED:
        raise OptionError(f"--seed must be from 0 to {_LARGEST_SEED}, got {seed}")
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    if not (math.isfinite(compile_timeout) and compile_timeout >= 0):
        raise OptionError(f"--compile-timeout must be a number of seconds from 0 on, got {compile_timeout:g}")
    return ExaminationRequest(
        spec=subject,
        config=whom.config,
        input=None if whom.input_kind is None else one_of("--input", whom.input_kind, ("embeddings", "tokens")),
        width=whom.width,
        declared=() if whom.spec is None else declared(whom.spec) if not words else function_spec(whom.spec).words,
        like=words.get("like"),
        reference=words.get("reference"),
        inputs=words.get("inputs"),
        train=whom.train,
        size=None if whom.size is None else one_of("--size", whom.size, ("small", "real")),
        device=device_option(device),
        dtype=None if dtype is None else one_of("--dtype", dtype, DTYPES),
        seed=seed,
        profile=cast(Profile, one_of("--profile", profile, PROFILES)),
        timeout=timeout,
        compile_timeout=compile_timeout,
    )


def require_named(whom: SubjectOptions, no_example: bool) -> None:
    """Raise OptionError for `--no-example` where nothing says whom to examine: the example passes."""
    if no_example and whom.subject is None and whom.config is None:
        raise OptionError("no subject is named: say --subject package.module:make, or nsa-doctor init writes one down")


def declared(spec: str) -> tuple[str, ...]:
    """Read `--spec` of a module; raises OptionError."""
    return declarations("--spec", spec.split(","))


def device_option(device: str) -> str:
    """Check where something is to be computed; raises OptionError."""
    return one_of("--device", device, ("cpu", "cuda"))


def _spec(subject: str, takes_functions: bool) -> str:
    """`package.module:factory` as it is; the name of an entry point as what it stands for."""
    if is_named(subject) or (len(subject) > len(HUGGING_FACE) and subject.startswith(HUGGING_FACE)):
        return subject
    known = {point.name: point.value for point in entry_points(group=_ENTRY_POINTS)}
    if subject in known:
        return known[subject]
    names = f" or one of {', '.join(sorted(known))}" if known else ""
    functions = ", fn:package.module:function" if takes_functions else ""
    raise OptionError(
        f"--subject must be package.module:factory{functions}, hf:MODEL_TYPE{names}, got {subject!r}"
        f"{in_place_of_path(subject)}"
    )


def sweep_request(
    *,
    examination_request: ExaminationRequest,
    seq: str,
    dtype: str | None,
    values: str,
    forward_only: bool,
    boundaries: bool,
) -> SweepRequest:
    """Check what `sweep` was given; raises OptionError."""
    lengths = lengths_option(seq)
    return SweepRequest(
        examination_request=replace(
            examination_request,
            lengths=lengths,
            forward_only=forward_only,
            boundaries_up_to=max(lengths) if boundaries else None,
        ),
        dtypes=() if dtype is None else _several("--dtype", dtype, DTYPES),
        values=_several("--values", values, VALUES),
    )


def run_request(
    *,
    examination_request: ExaminationRequest,
    select: str | None,
    ignore: str | None,
    jobs: int | None,
    fail_fast: bool,
) -> RunRequest:
    """Check what `run` was given; raises OptionError."""
    most = os.cpu_count() or 1
    if jobs is not None and not 1 <= jobs <= _MOST_JOBS:
        raise OptionError(f"--jobs must be from 1 to {_MOST_JOBS}, got {jobs}")
    selected, ignored = prefixes("--select", select), prefixes("--ignore", ignore)
    try:
        checks = registry.select(selected, ignored, examination_request.profile, examination_request.kind)
    except ValueError as error:
        raise OptionError(str(error)) from error
    count = min(jobs or min(most, _USUAL_JOBS), len(checks))
    threads = max(1, most // count) if count > 1 and examination_request.device == "cpu" else 0
    return RunRequest(
        examination_request=replace(examination_request, threads=threads, explore=True, lengths=_LENGTHS_TO_ASK_AT),
        checks=tuple(checks),
        selected=selected,
        jobs=count,
        fail_fast=fail_fast,
    )


def throughput_request(
    *, examination_request: ExaminationRequest, seq: str, repeats: int, floors: str | None
) -> ThroughputRequest:
    """Check what `throughput` was given; raises OptionError."""
    if not 3 <= repeats <= _MOST_REPEATS:
        raise OptionError(f"--repeats must be from 3 (fewer have no spread) to {_MOST_REPEATS}, got {repeats}")
    try:
        limits = None if floors is None else load_floors(floors)
    except FloorsError as error:
        raise OptionError(f"--floors: {error}") from error
    lengths = tuple(sorted(lengths_option(seq)))
    return ThroughputRequest(
        examination_request=replace(examination_request, lengths=lengths), repeats=repeats, floors=limits
    )


def lengths_option(seq: str) -> tuple[int, ...]:
    """Read `--seq`; raises OptionError."""
    try:
        return tuple(parse_lengths(seq))
    except ValueError as error:
        raise OptionError(f"--seq: {error}") from error


def report_format(
    form: str | None, output: Path | None, *, option: str = "--format", allowed: Sequence[str] = tuple(FORMATS)
) -> str:
    """The format asked for; when none was, what the file's name says."""
    if form is None:
        return (format_of(output) if output is not None else None) or "terminal"
    return one_of(option, form, allowed)


def _several(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one_of(option, word.strip(), allowed) for word in text.split(",")))
