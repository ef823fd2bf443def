"""`nsa-doctor fuzz`."""

from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, grouped
from nsa_doctor.core.reproduce import SECONDS


@grouped
def fuzz(
    *,
    target: Annotated[str | None, typer.Argument(help="ranges, masks, select, attend, forward or all.")] = None,
    examples: Annotated[int | None, typer.Option(help="Inputs to try per target; 300 if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same inputs; 0 if not given.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Go on with other seeds until this time is over.")] = None,
    subject: given.Subject = None,
    config: given.Config = None,
    input_kind: given.Input = None,
    width: given.Width = None,
    spec: given.Spec = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: given.Dtype = None,
    impl: Annotated[
        str | None, typer.Option(help="Implementation to try: reference, vectorized, fused, triton or flash.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Try the input in this file again, and nothing else.")] = None,
    save: Annotated[Path | None, typer.Option(help="Where to save an input that fails.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds one input may take.")] = SECONDS["fuzz"],
    report: ReportOptions,
) -> int:
    """Search for the smallest input that breaks a property.

    Saves it, to be tried again with --replay, as in `nsa-doctor fuzz select`.
    """
    from nsa_doctor.cli import fuzz_request as requesting
    from nsa_doctor.cli import progress
    from nsa_doctor.fuzz import run as fuzzing

    request = requesting.fuzz_request(
        target=target,
        examples=examples,
        seed=seed,
        minutes=minutes,
        subject=subject,
        config=config,
        input_kind=input_kind,
        width=width,
        spec=spec,
        device=device,
        dtype=dtype,
        replay=replay,
        save=save,
        timeout=timeout,
        impl=impl,
    )
    deliver = Delivery.asked(report, [replay] if replay else [])
    with progress.of_steps(report.quiet) as listener:
        found = fuzzing.fuzz(request, listener)
    return deliver(found)
