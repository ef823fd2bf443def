"""`nsa-doctor data`."""

from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.option_groups import ReportOptions, grouped


@grouped
def data(
    *,
    config: given.Config = None,
    dataset: Annotated[str | None, typer.Option(help="In place of the configuration's: text:PATH, …")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="In place of any other value.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="package.module:factory that returns an iterable of batches, in place of nsa's.")
    ] = None,
    batches: Annotated[int, typer.Option(help="Batches to look at.")] = 16,
    ranks: Annotated[int, typer.Option(help="Processes whose shares are compared.")] = 2,
    targets: Annotated[
        str | None,
        typer.Option(help="next: a target is the token after its input; same: the model shifts them itself."),
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per row of a --subject.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Size of the vocabulary of a --subject.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per batch of a --subject.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Longest wait for a batch; else data.limit_seconds.")] = None,
    report: ReportOptions,
) -> int:
    """Examine batches before a model sees them.

    For example `nsa-doctor data --config train_showcase --dataset text:book.txt`.
    """
    from nsa_doctor.artifacts.data.request import data_request

    request = data_request(
        config=config,
        dataset=dataset,
        changes=tuple(changes or ()),
        subject=subject,
        batches=batches,
        ranks=ranks,
        timeout=timeout,
        targets=targets,
        seq_len=seq_len,
        vocab_size=vocab_size,
        batch_size=batch_size,
    )
    deliver = Delivery.asked(report, [config] if config else [])
    from nsa_doctor.artifacts.data import examine as looking
    from nsa_doctor.cli import progress

    with progress.of_steps(report.quiet) as listener:
        found = looking.data(request, listener)
    return deliver(found)
