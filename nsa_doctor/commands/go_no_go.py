"""`nsa-doctor go-no-go`."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa_doctor import options
from nsa_doctor.commands import option_types as given
from nsa_doctor.commands.delivery import check_bundle, deliver_bundle
from nsa_doctor.laboratory import Assignment, UsageError

if TYPE_CHECKING:
    from nsa_doctor.gate import Gate
    from nsa_doctor.gate_stats import GateStatsRequest
    from nsa_doctor.go_no_go import Earlier
    from nsa_doctor.runs.record import RunRecord

_FOLDER = Path("go-no-go")


def go_no_go(
    gate: given.GateFile = None,
    run: given.RunFolder = None,
    checkpoint: given.Checkpoint = None,
    baseline: given.Baseline = None,
    because: given.Because = None,
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    config: given.Config = None,
    subject: given.Subject = None,
    input_kind: given.Input = None,
    width: given.Width = None,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    timeout: given.CallSeconds = 30.0,
    output: given.Bundle = _FOLDER,
    quiet: given.Quiet = False,
    traceback: given.Traceback = False,
) -> int:
    """Decide whether it may go into production, by a gate file, as in `nsa-doctor go-no-go --run artifacts/m7c`."""
    chosen = gate or ("foreign" if subject else "production")
    required = _gate(chosen)
    assignment = options.examined(
        device=device,
        config=config,
        subject=subject,
        input_kind=input_kind,
        width=width,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
        profile=required.profile,
    )
    evidence: dict[str, Any] = {
        "run": read_run_option(run),
        "checkpoint": _checkpoint(checkpoint),
        "earlier": _earlier(baseline, because),
    }
    check_bundle(output)
    again = _again(
        {"gate": chosen, "run": run, "checkpoint": checkpoint, "baseline": baseline, "because": because},
        {
            "config": config,
            "subject": subject,
            "input": input_kind,
            "width": width,
            "dtype": dtype,
            "device": device,
            "seed": seed,
            "timeout": f"{timeout:g}",
        },
    )
    from nsa_doctor import go_no_go as deciding
    from nsa_doctor import progress

    request = deciding.GoNoGoRequest(**_examined(assignment, required, jobs), gate=required, **evidence, again=again)
    with progress.of_steps(quiet) as listener:
        report = deciding.go_no_go(request, listener)
    return deliver_bundle(report, output, traceback)


def _examined(assignment: Assignment, gate: "Gate", jobs: int | None) -> dict[str, Any]:
    """Whom to examine, and the run of those checks that the gate requires of a module, if there are any."""
    codes = ",".join(entry.manual.code for entry in gate.checks if entry.examines == "module")
    asked = options.run_request(assignment=assignment, select=codes or None, ignore=None, jobs=jobs, fail_fast=False)
    checks = replace(asked, selected=(), command="go-no-go") if codes else None
    return {"assignment": asked.assignment, "module_checks": checks}


def _again(*options_given: Mapping[str, object]) -> str:
    """The command line that asks the same."""
    given_ones = [(name, value) for each in options_given for name, value in each.items() if value is not None]
    return shlex.join(
        ["nsa-doctor", "go-no-go", *(word for name, value in given_ones for word in (f"--{name}", str(value)))]
    )


def _gate(source: str) -> "Gate":
    from nsa.strict import ConfigError
    from nsa_doctor.gate import load_gate

    try:
        return load_gate(source)
    except ConfigError as error:
        raise UsageError(f"--gate {error}") from error


def _checkpoint(path: str | None) -> "GateStatsRequest | None":
    from nsa_doctor.gate_stats import stats_request

    if path is None:
        return None
    asked = stats_request(files=[path], pattern=None, num_branches=3, activation=None, seed=0, timeout=60.0)
    return replace(asked, read=replace(asked.read, wants_shapes=True))


def read_run_option(folder: Path | None) -> "RunRecord | None":
    """Read `--run`; raises UsageError."""
    from nsa_doctor.runs.reading import RunError, read_run

    try:
        return None if folder is None else read_run(folder)
    except RunError as error:
        raise UsageError(f"--run {error}") from error


def _earlier(baseline: Path | None, because: str | None) -> "Earlier | None":
    from nsa_doctor.go_no_go import Earlier
    from nsa_doctor.render.reading import UnreadableReportError, read_report

    if baseline is None:
        if because is not None:
            raise UsageError("--because gives the reason for a --baseline and has no effect without one; leave it out")
        return None
    if because is not None and not because.strip():
        raise UsageError("--because must say why, in a sentence, got nothing")
    try:
        return Earlier(report=read_report(baseline), name=str(baseline), because=because or "")
    except UnreadableReportError as error:
        raise UsageError(f"--baseline {error}") from error
