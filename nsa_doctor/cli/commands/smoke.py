"""`nsa-doctor smoke`."""

import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsa_doctor.artifacts.training_run.shortened import shortened
from nsa_doctor.artifacts.training_run.smoke import FEWEST_STEPS, SmokeRequest, train
from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import deliver_bundle
from nsa_doctor.cli.evidence import (
    batches_request,
    checkpoint_request,
    examined_by,
    read_gate_option,
    recompute_request,
)
from nsa_doctor.cli.option_groups import SubjectOptions
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.reproduce import SECONDS, reproduce
from nsa_doctor.core.writing import is_terminal, say, write_whole
from nsa_doctor.render.bundle import check_folder

if TYPE_CHECKING:
    from nsa_doctor.artifacts.training_run.record import RunRecord
    from nsa_doctor.core.finding import Report

_FOLDER = Path("smoke")
_MOST_STEPS = 10**6
_WATCHDOGS = 3  # how often the trainer's own watchdog may bark before it is ended


def smoke(
    config: given.Config = "train_showcase",
    dataset: Annotated[str | None, typer.Option(help="In place of the configuration's: text:PATH, …")] = None,
    steps: Annotated[int, typer.Option(help="Steps to train; the policy asks for 200.")] = 200,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="In place of any other value.")
    ] = None,
    device: given.Device = "cpu",
    policy: Annotated[
        str, typer.Option("--policy", "--gate", help="What has to hold: smoke, production, or a file.")
    ] = "smoke",
    jobs: given.Jobs = None,
    timeout: given.CallSeconds = SECONDS["smoke"],
    output: given.Bundle = _FOLDER,
    quiet: given.Quiet = False,
    traceback: given.Traceback = False,
) -> int:
    """Train briefly, kill it half-way, resume, and decide.

    For example `nsa-doctor smoke --config train_showcase`.
    """
    if not FEWEST_STEPS <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps must be from {FEWEST_STEPS} to {_MOST_STEPS}, got {steps}")
    required = read_gate_option(policy)
    folder, written = output / "run", output / "config.yaml"
    if os.path.lexists(folder):  # of a name that cannot be one, check_folder says why
        raise UsageError(f"{folder}: holds an earlier run; remove it, or give another --output")
    wanted = shortened(config or "", dataset, steps, folder, device, changes or [])
    examination_request = options.examined(
        SubjectOptions(config=str(written)), device=device, seed=0, timeout=timeout, profile=required.profile
    )
    asked = examined_by(examination_request, required, jobs)
    _write_config(written, wanted.text)

    tell = partial(_tell, quiet)
    for note in wanted.notes:
        tell(note)
    request = SmokeRequest(
        config=written,
        folder=folder,
        steps=steps,
        patience=_WATCHDOGS * wanted.watchdog_seconds,
        quiet=quiet,
        is_compiled=wanted.is_compiled,
    )
    failure = train(request, tell)
    notes = (*wanted.notes, *([f"the smoke run: {failure}"] if failure else []))
    named = {"config": config, "dataset": dataset, "steps": steps, "set": tuple(changes or ())}
    again = reproduce("smoke", **named, device=device, policy=policy, timeout=timeout)
    asked |= {"policy": required, "again": again, "data": batches_request(str(written))}
    report = _decided(asked, folder, device, quiet, failure)
    return deliver_bundle(replace(report, command="smoke", notes=(*notes, *report.notes)), output, traceback)


def _write_config(path: Path, text: str) -> None:
    """Make the folder of the run, once it is known that its report can be written there."""
    check_folder(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _tell(quiet: bool, sentence: str) -> None:
    if not quiet:
        say(f"{chr(10) * is_terminal(sys.stderr)}{sentence}\n", sys.stderr)


def _record(folder: Path, failure: str) -> "RunRecord":
    """The run; one that left nothing to read has ended with the sentence that its trainer failed with."""
    from nsa_doctor.artifacts.training_run.reading import RunError, read_run
    from nsa_doctor.artifacts.training_run.record import Beat, RunRecord

    try:
        return read_run(folder)
    except RunError as error:
        reason = failure or str(error)
        return RunRecord(folder=str(folder), beats=(Beat(ts=time.time(), msg=f"ended: {reason}"),))


def _decided(asked: dict[str, Any], folder: Path, device: str, quiet: bool, failure: str) -> "Report":
    """What the policy makes of model, run and weights."""
    from nsa_doctor.cli import progress
    from nsa_doctor.policy import go_no_go as deciding

    weights = folder / "model.safetensors"
    request = deciding.GoNoGoRequest(
        **asked,
        run=_record(folder, failure),
        recompute=recompute_request(device),
        checkpoint=checkpoint_request(str(weights)) if weights.exists() else None,
    )
    with progress.of_steps(quiet) as listener:
        return deciding.go_no_go(request, listener)
