"""What `fuzz` was given, each value refused in one sentence when it cannot be."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import SubjectOptions
from nsa_doctor.core.errors import OptionError, UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.nearest import one_of
from nsa_doctor.core.writing import check_writable
from nsa_doctor.fuzz.cases import IMPLS, TARGETS, Impl, Target
from nsa_doctor.fuzz.replay import load
from nsa_doctor.fuzz.request import EXAMPLES, LENGTHS_ASKED, FuzzRequest

_MOST_EXAMPLES = 10**7
_MOST_MINUTES = 60 * 24 * 7
ALL = "all"


def fuzz_request(
    *,
    target: str | None,
    examples: int | None,
    seed: int | None,
    minutes: float | None,
    subject: str | None,
    config: str | None,
    input_kind: str | None,
    width: int | None,
    device: str | None,
    dtype: str | None,
    replay: Path | None,
    save: Path | None,
    timeout: float,
    impl: str | None = None,
    spec: str | None = None,
) -> FuzzRequest:
    """Check what `fuzz` was given; raises OptionError or UsageError."""
    about_search = {"--examples": examples, "--minutes": minutes, "--seed": seed, "--save": save, "--impl": impl}
    about_subject = {"--config": config, "--input": input_kind, "--width": width}
    about_subject |= {"--spec": spec, "--device": device, "--dtype": dtype}
    if replay is not None:
        return _replay(replay, target, subject, timeout, {**about_search, **about_subject})
    examination_request = options.examined(
        SubjectOptions(config=config, subject=subject, input_kind=input_kind, width=width, spec=spec),
        device=device or "cpu",
        seed=seed or 0,
        timeout=timeout,
        dtype=dtype,
    )
    if examples is not None and not 1 <= examples <= _MOST_EXAMPLES:
        raise OptionError(f"--examples must be from 1 to {_MOST_EXAMPLES}, got {examples}")
    if minutes is not None and not 0 < minutes <= _MOST_MINUTES:  # NaN, too
        raise OptionError(f"--minutes must be a number above 0 and at most {_MOST_MINUTES}, got {minutes:g}")
    request = FuzzRequest(
        examination_request=replace(examination_request, lengths=LENGTHS_ASKED),
        targets=_targets(target),
        examples=examples or EXAMPLES,
        minutes=minutes,
        save=save,
        impl=_impl(impl),
    )
    if save is not None:
        check_writable(request.path(request.targets[0]))
    return request


def _targets(target: str | None) -> tuple[Target, ...]:
    if target is None:
        raise OptionError(f"a target is needed: {', '.join(TARGETS)} or {ALL}")
    if target == ALL:
        return TARGETS
    return (cast(Target, one_of("a target", target, (*TARGETS, ALL))),)


def _impl(impl: str | None) -> Impl | None:
    if impl is not None and impl not in IMPLS:
        raise OptionError(f"--impl cannot be {impl!r}: allowed are {', '.join(IMPLS)}")
    return impl


def _replay(
    path: Path, target: str | None, subject: str | None, timeout: float, others: Mapping[str, object]
) -> FuzzRequest:
    if given := [name for name, value in others.items() if value is not None]:
        raise OptionError(f"{given[0]} has no effect with --replay, whose file says it; leave it out")
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    saved = load(path)
    if target not in (None, saved.target):
        raise OptionError(f"{path}: is an input of target {saved.target}, not of {target!r}")
    if saved.spec != subject:
        found_on = f"--subject {saved.spec}" if saved.spec else "the built-in subject, without --subject"
        raise UsageError(f"{path}: was found on {found_on}; say so to try it again")
    spec = ",".join(saved.declared) or None
    options.examined(
        SubjectOptions(config=saved.config, subject=subject, input_kind=saved.input, width=saved.width, spec=spec),
        device=saved.device,
        seed=saved.seed,
        timeout=timeout,
        dtype=saved.dtype,
    )
    examination_request = ExaminationRequest(
        spec=saved.spec,
        config=saved.config,
        input=saved.input,
        width=saved.width,
        declared=tuple(saved.declared),
        device=saved.device,
        dtype=saved.dtype,
        seed=saved.seed,
        timeout=timeout,
        lengths=LENGTHS_ASKED,
    )
    return FuzzRequest(examination_request=examination_request, targets=(saved.target,), replay=saved, replayed=path)
