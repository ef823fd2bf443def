"""`nsa-doctor anomaly`."""

from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, SubjectOptions, grouped
from nsa_doctor.core.reproduce import SECONDS


@grouped
def anomaly(
    *,
    seq: given.Lengths = "512",
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    whom: SubjectOptions,
    seed: given.Seed = 0,
    timeout: Annotated[float, typer.Option(help="Seconds one call of the subject may take.")] = SECONDS["anomaly"],
    report: ReportOptions,
) -> int:
    """Find in-place writes, NaN and lost gradients in backward.

    Names both lines of a write, and parameters that cannot learn, as in `nsa-doctor anomaly --seq 128`.
    """
    examination_request = options.examined(
        whom,
        device=device,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
    )
    lengths = options.lengths_option(seq)
    deliver = Delivery.asked(report, [whom.config] if whom.config else [])
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import anomaly as finding_anomalies
    from nsa_doctor.engine import run as running

    with progress.of_steps(report.quiet) as listener:
        found = running.run(finding_anomalies.request(examination_request, lengths), listener)
    return deliver(found)
