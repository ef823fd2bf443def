"""`nsa-doctor go-no-go`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.delivery import deliver_bundle
from nsa_doctor.cli.evidence import (
    batches_request,
    checkpoint_request,
    examined_by,
    read_gate_option,
    read_run_option,
    recompute_request,
)
from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions, grouped
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import COMPILE_SECONDS
from nsa_doctor.core.like import FUNCTION
from nsa_doctor.core.reproduce import SECONDS, reproduce
from nsa_doctor.render.bundle import check_folder

if TYPE_CHECKING:
    from nsa_doctor.artifacts.training_run.replay import RecomputeRequest
    from nsa_doctor.core.finding import Report
    from nsa_doctor.policy.go_no_go import Earlier, GoNoGoRequest

_FOLDER = Path("go-no-go")
_MOST_MUTANTS = 10_000


@grouped
def go_no_go(
    *,
    policy: given.PolicyFile = None,
    run: given.RunFolder = None,
    recompute: given.Recompute = False,
    checkpoint: given.Checkpoint = None,
    data: given.Data = None,
    baseline: given.Baseline = None,
    because: given.Because = None,
    prove: given.Prove = None,
    prove_seed: given.ProveSeed = 0,
    device: given.Device = "cpu",
    dtype: given.Dtype = None,
    whom: SubjectOptions,
    no_example: given.NoExample = False,
    function: FunctionOptions,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    timeout: given.CallSeconds = SECONDS["go-no-go"],
    compile_timeout: given.CompileSeconds = COMPILE_SECONDS,
    output: given.Bundle = _FOLDER,
    quiet: given.Quiet = False,
    traceback: given.Traceback = False,
) -> int:
    """Decide by a policy whether it may go into production.

    For example `nsa-doctor go-no-go --run artifacts/m7c`.

    What a GO is worth: `nsa-doctor go-no-go --subject my_pkg.attn:make --prove 20`.
    """
    options.require_named(whom, no_example)
    chosen = policy or _usual_policy(whom)
    required = read_gate_option(chosen)
    how: dict[str, Any] = {"dtype": dtype, "device": device, "seed": seed, "timeout": timeout}
    how |= {"compile_timeout": compile_timeout}
    examination_request = options.examined(whom, **how, profile=required.profile, function=function)
    evidence: dict[str, Any] = {
        "run": read_run_option(run),
        "checkpoint": checkpoint_request(checkpoint),
        "data": batches_request(data),
        "recompute": _recompute(recompute, run, device),
        "earlier": _earlier(baseline, because),
    }
    _check_proving(prove, prove_seed)
    if prove is not None and function.like is not None:
        raise UsageError("--prove changes lines of a module and does not examine functions; leave it out")
    check_folder(output)
    given_evidence: dict[str, Any] = {"run": run, "recompute": recompute, "checkpoint": checkpoint, "data": data}
    given_evidence |= {"baseline": baseline, "because": because, "prove": prove, "prove_seed": prove_seed or None}
    again = reproduce("go-no-go", policy=chosen, **given_evidence, **whom.words(), **function.words(), **how)
    from nsa_doctor.cli import progress
    from nsa_doctor.policy import go_no_go as deciding

    request = deciding.GoNoGoRequest(
        **examined_by(examination_request, required, jobs), policy=required, **evidence, again=again
    )
    with progress.of_steps(quiet) as listener:
        report = _proved(deciding.go_no_go(request, listener), request, prove, prove_seed, listener)
    return deliver_bundle(report, output, traceback)


def _usual_policy(whom: SubjectOptions) -> str:
    if whom.subject is None:
        return "production"
    return "function" if whom.subject.startswith(FUNCTION) else "foreign"


def _check_proving(count: int | None, seed: int) -> None:
    if count is None and seed:
        raise UsageError("--prove-seed draws the mutants of --prove and has no effect without it; leave it out")
    if count is not None and not 1 <= count <= _MOST_MUTANTS:
        raise UsageError(f"--prove must be from 1 to {_MOST_MUTANTS} mutants, got {count}")


def _proved(
    report: "Report", request: "GoNoGoRequest", count: int | None, seed: int, listen: Callable[[str, int, int], None]
) -> "Report":
    from nsa_doctor.policy.proving.prove import ProveRequest, prove

    if count is None or report.interrupted:
        return report
    checks = request.module_checks
    return prove(ProveRequest(count=count, seed=seed, policy=request.policy, module_checks=checks), report, listen)


def _recompute(is_asked: bool, run: Path | None, device: str) -> "RecomputeRequest | None":
    if is_asked and run is None:
        raise UsageError("--recompute is for a --run and has no effect without one; leave it out")
    return recompute_request(device) if is_asked else None


def _earlier(baseline: Path | None, because: str | None) -> "Earlier | None":
    from nsa_doctor.policy.go_no_go import Earlier
    from nsa_doctor.render.reading import UnreadableReportError, read_report

    if baseline is None:
        if because is not None:
            raise UsageError("--because gives the reason for a --baseline and has no effect without one; leave it out")
        return None
    if because is not None and not because.strip():
        raise UsageError("--because must say why, in a sentence, got nothing")
    try:
        return Earlier(report=read_report(baseline), name=str(baseline), because=because or "")
    except UnreadableReportError as error:
        raise UsageError(f"--baseline {error}") from error
