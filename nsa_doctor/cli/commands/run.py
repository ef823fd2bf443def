"""`nsa-doctor run`."""

from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.core.reproduce import SECONDS


def run(
    select: given.Select = None,
    ignore: given.Ignore = None,
    profile: Annotated[str, typer.Option(help="smoke (10 s), quick (a minute) or full (ten minutes).")] = "quick",
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    config: given.Config = None,
    subject: given.Subject = None,
    input_kind: given.Input = None,
    width: given.Width = None,
    spec: given.Spec = None,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    fail_fast: given.FailFast = False,
    timeout: given.CallSeconds = SECONDS["run"],
    form: given.Format = None,
    output: given.Output = None,
    quiet: given.Quiet = False,
    traceback: given.Traceback = False,
) -> int:
    """Run the checks that apply, or those selected.

    For example `nsa-doctor run --subject my_pkg.attn:make --select FWD,GRD`.
    """
    examination_request = options.examined(
        device=device,
        config=config,
        subject=subject,
        input_kind=input_kind,
        width=width,
        spec=spec,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
        profile=profile,
    )
    request = options.run_request(
        examination_request=examination_request, select=select, ignore=ignore, jobs=jobs, fail_fast=fail_fast
    )
    deliver = Delivery.asked(form, output, traceback, quiet)
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import run as running

    with progress.of_steps(quiet) as listener:
        report = running.run(request, listener)
    return deliver(report)
