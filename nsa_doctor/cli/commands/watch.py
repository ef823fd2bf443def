"""`nsa-doctor watch`."""

from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli.delivery import Delivery
from nsa_doctor.cli.evidence import recompute_request
from nsa_doctor.cli.grammar import require_folder
from nsa_doctor.cli.option_groups import ReportOptions, grouped
from nsa_doctor.core.errors import UsageError

_OF_RUNS = (".jsonl", ".csv", ".db", ".log", ".safetensors", ".pt", ".yaml")
_FACTS = ("env.json", "trainer_state.json")


@grouped
def watch(
    *,
    run_dir: Annotated[
        Path,
        typer.Argument(
            help="Folder or log of a run: TensorBoard events, wandb/offline-run-*, mlflow.db or mlruns, "
            "trainer_state.json, Lightning's metrics.csv, torchtitan's log or outputs, .jsonl or .csv (with --map), "
            "or what nsa.train wrote."
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run ends, and report on the way.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks of --follow.")] = 2.0,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="QUANTITY=COLUMN",
            help="What a log calls things: step=global_step,loss=train/loss. Known are ts, step, loss, eval_loss, lr, "
            "grad_norm, tokens_per_second, fetch_seconds, memory, rank, pid, msg; usual names need none. Columns of a "
            "table without names are 1, 2, 3: step=1,loss=3.",
        ),
    ] = None,
    recompute: given.Recompute = False,
    device: Annotated[str | None, typer.Option(help="Where --recompute computes: cpu (the default) or cuda.")] = None,
    select: given.Select = None,
    ignore: given.Ignore = None,
    report: ReportOptions,
) -> int:
    """Examine a live or finished training run.

    For example `nsa-doctor watch artifacts/m7c --follow`.
    """
    from nsa_doctor.artifacts.training_run import watch as watching
    from nsa_doctor.cli import progress
    from nsa_doctor.cli.following import FollowingScreen

    if recompute and follow:
        raise UsageError("--recompute looks at a run once and has no effect with --follow; leave one out")
    if recompute:
        require_folder()
    asked = recompute_request(device) if recompute else None
    if device is not None and asked is None:
        raise UsageError("--device says where --recompute computes and has no effect without it; leave it out")
    request = watching.watch_request(
        place=run_dir, maps=maps or (), select=select, ignore=ignore, every=every, recompute=asked
    )
    deliver = Delivery.asked(report, _read_of(run_dir))
    if not follow:
        with progress.of_steps(report.quiet or asked is None) as listener:
            found = watching.watch(request, listener)
        return deliver(found)
    screen = FollowingScreen(report.quiet)
    try:
        found = watching.follow(request, screen)
    finally:
        screen.clear()
    return deliver(found)


def _read_of(run_dir: Path) -> list[Path]:
    """The files that a run is read from: the log itself, or what lies in its folder and is no report of it."""
    if not run_dir.is_dir():
        return [run_dir]
    return [each for each in run_dir.iterdir() if each.suffix in _OF_RUNS or each.name in _FACTS]
