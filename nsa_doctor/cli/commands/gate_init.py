"""`nsa-doctor gate-init`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import ENDED_EARLY
from nsa_doctor.cli.evidence import read_run_option
from nsa_doctor.cli.option_groups import SubjectOptions
from nsa_doctor.core import signals
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.reproduce import SECONDS, reproduce
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import check_writable, say, write_whole

if TYPE_CHECKING:
    from nsa_doctor.core.finding import Report

_FILE = Path("gate.yaml")


def gate_init(
    subject: given.Subject = None,
    config: given.Config = None,
    profile: given.Profile = "quick",
    run: given.RunFolder = None,
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    input_kind: given.Input = None,
    width: given.Width = None,
    spec: given.Spec = None,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    timeout: given.CallSeconds = SECONDS["gate-init"],
    output: Annotated[Path, typer.Option(help="The policy file to write.")] = _FILE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    quiet: given.Quiet = False,
) -> int:
    """Draft a policy file from what a subject passes now.

    For example `nsa-doctor gate-init --subject my_pkg.attn:make`.
    """
    check_writable(output)
    if output.exists() and not overwrite:
        raise UsageError(f"--output {output}: is there already, and people write into policy files; add --overwrite")
    whom = SubjectOptions(config=config, subject=subject, input_kind=input_kind, width=width, spec=spec)
    how: dict[str, Any] = {"dtype": dtype, "device": device, "timeout": timeout}
    examination_request = options.examined(whom, **how, seed=seed, profile=profile)
    request = options.run_request(
        examination_request=examination_request, select=None, ignore=None, jobs=jobs, fail_fast=False
    )
    record = read_run_option(run)
    from nsa_doctor.artifacts.training_run.numbers import numbers_of
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import run as running
    from nsa_doctor.policy.policy_draft import draft

    with progress.of_steps(quiet) as listener:
        report = running.run(request, listener)
    if report.interrupted:
        say("nsa-doctor: interrupted: no policy is drafted from half an examination\n", sys.stderr)
        return ENDED_EARLY
    if not any(measurement.trouble is None for measurement in report.measurements):
        say(f"nsa-doctor: no policy is drafted from a subject that gives no answer: {_why(report)}\n", sys.stderr)
        return report.decision.exit_code
    signals.ignore_signals()
    write_whole(output, draft(report, numbers_of(record) if record else {}, record.device_name if record else ""))
    line = reproduce("go-no-go", policy=output, run=run, **whom.words(), **how, seed=seed or None)
    say(f"written: {output}; try it with: {line}\n", sys.stdout)
    return 0


def _why(report: "Report") -> str:
    """The first thing that is wrong and its place, or why nothing is known to be."""
    for finding in report.findings:
        return escaped(f"{finding.code} {finding.message} ({finding.where})")
    return escaped(next((result.reason for result in report.results if result.reason), "nothing measured"))
