"""`nsa-doctor sweep`."""

from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, SubjectOptions, grouped
from nsa_doctor.core.reproduce import SECONDS

_DTYPE_HELP = "float32, float64, bfloat16, float16; several with commas; else its own."


@grouped
def sweep(
    *,
    seq: given.Lengths = "128,512,1024,2048",
    dtype: Annotated[str | None, typer.Option(help=_DTYPE_HELP)] = None,
    device: given.Device = "cpu",
    whom: SubjectOptions,
    values: Annotated[str, typer.Option(help="Kinds of input, separated by commas.")] = "normal",
    seed: given.Seed = 0,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="No gradients.")] = False,
    boundaries: Annotated[
        bool, typer.Option("--boundaries", help="Add every length at which the geometry changes, and its neighbours.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds one length may take in one mode.")] = SECONDS["sweep"],
    report: ReportOptions,
) -> int:
    """Sweep lengths, dtypes and modes for NaN and inf.

    Names the module, line and operation where a value first is not finite, as in `nsa-doctor sweep --seq 128,512`.
    """
    examination_request = options.examined(
        whom,
        device=device,
        seed=seed,
        timeout=timeout,
    )
    request = options.sweep_request(
        examination_request=examination_request,
        seq=seq,
        dtype=dtype,
        values=values,
        forward_only=forward_only,
        boundaries=boundaries,
    )
    deliver = Delivery.asked(report, [whom.config] if whom.config else [])
    from nsa_doctor.cli import progress
    from nsa_doctor.engine import sweep as sweeping

    with progress.progress(report.quiet) as listener:
        found = sweeping.sweep(request, listener)
    return deliver(found)
