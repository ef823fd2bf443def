"""`nsa-doctor run`."""

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import FunctionOptions, ReportOptions, SubjectOptions, grouped
from nsa_doctor.core.examination_request import COMPILE_SECONDS
from nsa_doctor.core.reproduce import SECONDS


@grouped
def run(
    *,
    select: given.Select = None,
    ignore: given.Ignore = None,
    profile: given.Profile = "quick",
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    whom: SubjectOptions,
    no_example: given.NoExample = False,
    function: FunctionOptions,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    fail_fast: given.FailFast = False,
    timeout: given.CallSeconds = SECONDS["run"],
    compile_timeout: given.CompileSeconds = COMPILE_SECONDS,
    report: ReportOptions,
) -> int:
    """Run the checks that apply, or those selected.

    For example `nsa-doctor run --subject my_pkg.attn:make --select FWD,GRD`.
    """
    options.require_named(whom, no_example)
    examination_request = options.examined(
        whom,
        device=device,
        seed=seed,
        timeout=timeout,
        compile_timeout=compile_timeout,
        dtype=dtype,
        profile=profile,
        function=function,
    )
    request = options.run_request(
        examination_request=examination_request, select=select, ignore=ignore, jobs=jobs, fail_fast=fail_fast
    )
    deliver = Delivery.asked(report, [whom.config] if whom.config else [])
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import run as running

    with progress.of_steps(report.quiet) as listener:
        found = running.run(request, listener)
    return deliver(found)
