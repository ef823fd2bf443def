"""What commands that decide by a policy have in common: the policy itself, and the evidence it asks for."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa_doctor.cli import options
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.reproduce import SECONDS

if TYPE_CHECKING:
    from nsa_doctor.artifacts.checkpoint.gate_stats import GateStatsRequest
    from nsa_doctor.artifacts.data.request import DataRequest
    from nsa_doctor.artifacts.training_run.record import RunRecord
    from nsa_doctor.artifacts.training_run.replay import RecomputeRequest
    from nsa_doctor.policy.policy import Policy


def examined_by(examination_request: ExaminationRequest, policy: "Policy", jobs: int | None) -> dict[str, Any]:
    """Whom to examine, and the run of those checks that the policy requires of its kind, if there are any."""
    codes = ",".join(entry.manual.code for entry in policy.checks if entry.examines == examination_request.kind)
    asked = options.run_request(
        examination_request=examination_request, select=codes or None, ignore=None, jobs=jobs, fail_fast=False
    )
    checks = replace(asked, selected=(), command="go-no-go") if codes else None
    return {"examination_request": asked.examination_request, "module_checks": checks}


def read_gate_option(source: str) -> "Policy":
    """Read `--policy`; raises UsageError."""
    from nsa.strict import ConfigError
    from nsa_doctor.policy.policy import load_policy

    try:
        return load_policy(source)
    except ConfigError as error:
        raise UsageError(f"--policy {error}") from error


def checkpoint_request(path: str | None) -> "GateStatsRequest | None":
    """Read `--checkpoint`, its shapes too, which say whose it is."""
    from nsa_doctor.artifacts.checkpoint.gate_stats import stats_request

    if path is None:
        return None
    asked = stats_request(
        files=[path], pattern=None, num_branches=3, activation=None, seed=0, timeout=SECONDS["gate-stats"]
    )
    return replace(asked, read=replace(asked.read, wants_shapes=True))


def batches_request(config: str | None) -> "DataRequest | None":
    """Read `--data`: every check of the batches of a configuration; raises OptionError."""
    from nsa_doctor.artifacts.data.request import data_request

    return None if config is None else data_request(config=config)


def read_run_option(folder: Path | None) -> "RunRecord | None":
    """Read `--run`; raises UsageError."""
    from nsa_doctor.artifacts.training_run.reading import RunError, read_run

    try:
        return None if folder is None else read_run(folder)
    except RunError as error:
        raise UsageError(f"--run {error}") from error


def recompute_request(device: str | None) -> "RecomputeRequest":
    """Read `--recompute`; raises OptionError for a device that is none."""
    from nsa_doctor.artifacts.training_run.replay import RecomputeRequest

    return RecomputeRequest(device=options.device_option(device or "cpu"))
