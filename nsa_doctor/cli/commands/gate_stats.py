"""`nsa-doctor gate-stats`."""

from typing import Annotated

import typer

from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, grouped
from nsa_doctor.core.reproduce import SECONDS


@grouped
def gate_stats(
    *,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Checkpoints, the earliest first.")],
    pattern: Annotated[
        str | None, typer.Option(help="What gates are called: a glob or a regular expression of tensor names.")
    ] = None,
    num_branches: Annotated[int, typer.Option(help="How many branches a gate weighs.")] = 3,
    activation: Annotated[
        str | None,
        typer.Option(help="softmax or sigmoid: how logits become weights; else as the file says, or softmax."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs that gates are tried on.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that reading one checkpoint may take.")] = SECONDS[
        "gate-stats"
    ],
    report: ReportOptions,
) -> int:
    """Examine the gates of checkpoints, executing nothing.

    For example `nsa-doctor gate-stats model.pt`.
    """
    from nsa_doctor.artifacts.checkpoint import gate_stats as reading
    from nsa_doctor.cli import progress

    request = reading.stats_request(
        files=files, pattern=pattern, num_branches=num_branches, activation=activation, seed=seed, timeout=timeout
    )
    deliver = Delivery.asked(report, files)
    with progress.of_steps(report.quiet) as listener:
        found = reading.gate_stats(request, listener)
    return deliver(found)
