"""`nsa-doctor throughput`."""

from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, SubjectOptions, grouped
from nsa_doctor.core.reproduce import SECONDS


@grouped
def throughput(
    *,
    seq: given.Lengths = "512,1024,2048",
    floors: Annotated[str | None, typer.Option(help="File of floors, or cpu, a100, h200; else the device's.")] = None,
    repeats: Annotated[int, typer.Option(help="Passes to time at each length.")] = 7,
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    whom: SubjectOptions,
    seed: given.Seed = 0,
    timeout: Annotated[float, typer.Option(help="Seconds all passes at one length may take.")] = SECONDS["throughput"],
    report: ReportOptions,
) -> int:
    """Measure tokens per second, and how time and memory grow.

    Of a subject that is correct first; floors judge it, as in `nsa-doctor throughput --seq 1024,4096`.
    """
    examination_request = options.examined(
        whom,
        device=device,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
        profile="smoke",
    )
    request = options.throughput_request(
        examination_request=examination_request, seq=seq, repeats=repeats, floors=floors
    )
    deliver = Delivery.asked(report, [whom.config] if whom.config else [])
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import throughput as timing

    with progress.of_steps(report.quiet) as listener:
        found = timing.throughput(request, listener)
    return deliver(found)
