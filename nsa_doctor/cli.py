"""The command line: parse, call, exit code; nothing else."""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nsa_doctor import options, signals
from nsa_doctor.finding import Decision, Report
from nsa_doctor.laboratory import DoctorBrokeError, UsageError
from nsa_doctor.output import CannotWriteError, check_writable, is_terminal, say, write_whole
from nsa_doctor.runner import Caught, attempt

EXIT_CODES = {Decision.GO: 0, Decision.NO_GO: 1, Decision.UNKNOWN: 3}
USAGE, BROKEN = 2, 4
_ENDED_EARLY = -1  # the report was delivered
_TYPERS_INTERRUPTED = 130  # typer makes this of a KeyboardInterrupt that comes out of a command
_UsageException = typer.BadParameter.__mro__[2]  # click's base of all usage errors, wherever typer keeps click

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Examines sparse-attention code: says what is wrong, where, and what to do about it.",
    epilog="Exit codes: 0 all is well, 1 something is wrong, 2 usage, 3 not everything could be measured, "
    "4 nsa-doctor itself broke, 130 interrupted, "
    "143 or 129 ended by SIGTERM or SIGHUP; what was interrupted reports what it measured.",
)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    signals.interrupt_on_signals()
    sys.exit(serve(sys.argv[1:]))


def serve(arguments: list[str]) -> int:
    """Run one command line; every error becomes one sentence on standard error and an exit code."""
    if not arguments:
        return _complain("a command is needed: run, sweep, list or explain; --help says more", USAGE)
    answer = attempt(lambda: app(args=arguments, prog_name="nsa-doctor", standalone_mode=False))
    if answer == _ENDED_EARLY:
        return signals.exit_code()
    if answer == _TYPERS_INTERRUPTED:
        return _complain("interrupted", signals.exit_code())
    if not isinstance(answer, Caught):
        return answer if isinstance(answer, int) else 0
    error = answer.error
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return _complain("interrupted", signals.exit_code())
    if "--traceback" in arguments:
        say(getattr(error, "traceback", "") or answer.traceback, sys.stderr)
    if isinstance(error, _UsageException):
        return _complain(" ".join(error.format_message().split()), USAGE)  # type: ignore[attr-defined]
    if isinstance(error, (UsageError, options.OptionError)):
        return _complain(str(error), USAGE)
    if isinstance(error, CannotWriteError):
        return _complain(str(error), BROKEN)
    told = str(error) if isinstance(error, DoctorBrokeError) else answer.sentence
    return _complain(f"the doctor itself broke: {told}; --traceback shows where", BROKEN)


@app.callback()
def _commands() -> None:
    """Keeps `sweep` a command of its own."""


@app.command()
def sweep(
    seq: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "128,512,1024,2048",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float64, bfloat16, float16; several with commas; else its own.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    config: Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")] = None,
    subject: Annotated[str | None, typer.Option(help="package.module:factory in place of nsa.")] = None,
    input: Annotated[str | None, typer.Option(help="embeddings or tokens; found out when not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")] = None,
    values: Annotated[str, typer.Option(help="Kinds of input, separated by commas.")] = "normal",
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="No gradients.")] = False,
    boundaries: Annotated[
        bool, typer.Option("--boundaries", help="Add every length at which the geometry changes, and its neighbours.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds one length may take in one mode.")] = 60.0,
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> int:
    """Find lengths, dtypes and modes at which outputs or gradients are not finite, and where that begins."""
    assignment = options.examined(
        device=device, config=config, subject=subject, input_kind=input, width=width, seed=seed, timeout=timeout
    )
    request = options.sweep_request(
        assignment=assignment,
        seq=seq,
        dtype=dtype,
        values=values,
        forward_only=forward_only,
        boundaries=boundaries,
    )
    form = options.report_format(format, output)
    if output is not None:
        _check_writable(output)
    from nsa_doctor import progress
    from nsa_doctor import sweep as sweeping

    with progress.progress(quiet) as listener:
        report = sweeping.sweep(request, listener)
    signals.ignore_signals()
    _deliver(report, form, output, traceback, quiet)
    return _ENDED_EARLY if report.interrupted else EXIT_CODES[report.decision]


@app.command()
def run(
    select: Annotated[str | None, typer.Option(help="Only these codes or families: FWD,NAN101.")] = None,
    ignore: Annotated[str | None, typer.Option(help="Not these codes or families.")] = None,
    profile: Annotated[str, typer.Option(help="smoke (10 s), quick (a minute) or full (ten minutes).")] = "quick",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Examine it in this dtype in place of its own.")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")] = None,
    subject: Annotated[str | None, typer.Option(help="package.module:factory in place of nsa.")] = None,
    input: Annotated[str | None, typer.Option(help="embeddings or tokens; found out when not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes to work in; as many as cores, at most 4.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first check that fails.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds one call of the subject may take.")] = 30.0,
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> int:
    """Run every check that applies, or those selected, as in `nsa-doctor run --subject my_pkg.attn:make`."""
    assignment = options.examined(
        device=device,
        config=config,
        subject=subject,
        input_kind=input,
        width=width,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
        profile=profile,
    )
    request = options.run_request(assignment=assignment, select=select, ignore=ignore, jobs=jobs, fail_fast=fail_fast)
    form = options.report_format(format, output)
    if output is not None:
        _check_writable(output)
    from nsa_doctor import progress
    from nsa_doctor import run as running

    with progress.of_steps(quiet) as listener:
        report = running.run(request, listener)
    signals.ignore_signals()
    _deliver(report, form, output, traceback, quiet)
    return _ENDED_EARLY if report.interrupted else EXIT_CODES[report.decision]


@app.command()
def anomaly(
    seq: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "512",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Examine it in this dtype in place of its own.")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")] = None,
    subject: Annotated[str | None, typer.Option(help="package.module:factory in place of nsa.")] = None,
    input: Annotated[str | None, typer.Option(help="embeddings or tokens; found out when not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds one call of the subject may take.")] = 60.0,
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> int:
    """Find writes into what backward needs, both lines named, NaN in backward, and parameters that cannot learn."""
    assignment = options.examined(
        device=device,
        config=config,
        subject=subject,
        input_kind=input,
        width=width,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
    )
    lengths = options.lengths_option(seq)
    form = options.report_format(format, output)
    if output is not None:
        _check_writable(output)
    from nsa_doctor import anomaly as finding_anomalies
    from nsa_doctor import progress
    from nsa_doctor import run as running

    with progress.of_steps(quiet) as listener:
        report = running.run(finding_anomalies.request(assignment, lengths), listener)
    signals.ignore_signals()
    _deliver(report, form, output, traceback, quiet)
    return _ENDED_EARLY if report.interrupted else EXIT_CODES[report.decision]


@app.command()
def fuzz(
    target: Annotated[str | None, typer.Argument(help="ranges, masks, select, attend, forward or all.")] = None,
    examples: Annotated[int | None, typer.Option(help="Inputs to try per target; 300 if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same inputs; 0 if not given.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Go on with other seeds until this time is over.")] = None,
    subject: Annotated[str | None, typer.Option(help="package.module:factory in place of nsa.")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")] = None,
    input: Annotated[str | None, typer.Option(help="embeddings or tokens; found out when not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Examine it in this dtype in place of its own.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Try the input in this file again, and nothing else.")] = None,
    save: Annotated[Path | None, typer.Option(help="Where to save an input that fails.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds one input may take.")] = 20.0,
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> int:
    """Search for the least input that breaks a property, as in `nsa-doctor fuzz select`; save it, try it again."""
    from nsa_doctor import progress
    from nsa_doctor.fuzz import request as requesting
    from nsa_doctor.fuzz import run as fuzzing

    request = requesting.fuzz_request(
        target=target,
        examples=examples,
        seed=seed,
        minutes=minutes,
        subject=subject,
        config=config,
        input_kind=input,
        width=width,
        device=device,
        dtype=dtype,
        replay=replay,
        save=save,
        timeout=timeout,
    )
    form = options.report_format(format, output)
    if output is not None:
        _check_writable(output)
    with progress.of_steps(quiet) as listener:
        report = fuzzing.fuzz(request, listener)
    signals.ignore_signals()
    _deliver(report, form, output, traceback, quiet)
    return _ENDED_EARLY if report.interrupted else EXIT_CODES[report.decision]


@app.command()
def throughput(
    seq: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "512,1024,2048",
    floors: Annotated[str | None, typer.Option(help="File of floors, or cpu, a100, h200; else the device's.")] = None,
    repeats: Annotated[int, typer.Option(help="Passes to time at each length.")] = 7,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Examine it in this dtype in place of its own.")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")] = None,
    subject: Annotated[str | None, typer.Option(help="package.module:factory in place of nsa.")] = None,
    input: Annotated[str | None, typer.Option(help="embeddings or tokens; found out when not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds all passes at one length may take.")] = 120.0,
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")] = False,
) -> int:
    """Tokens per second, growth of time and memory, waits, and floors; of a subject that passes a check first."""
    assignment = options.examined(
        device=device,
        config=config,
        subject=subject,
        input_kind=input,
        width=width,
        seed=seed,
        timeout=timeout,
        dtype=dtype,
        profile="smoke",
    )
    request = options.throughput_request(assignment=assignment, seq=seq, repeats=repeats, floors=floors)
    form = options.report_format(format, output)
    if output is not None:
        _check_writable(output)
    from nsa_doctor import progress
    from nsa_doctor import throughput as timing

    with progress.of_steps(quiet) as listener:
        report = timing.throughput(request, listener)
    signals.ignore_signals()
    _deliver(report, form, output, traceback, quiet)
    return _ENDED_EARLY if report.interrupted else EXIT_CODES[report.decision]


@app.command()
def env(
    device: Annotated[str, typer.Option(help="cpu or cuda: where routes are asked for.")] = "cpu",
    format: Annotated[str | None, typer.Option(help="terminal or json.")] = None,
) -> int:
    """Versions, devices, flags, and what serves each branch: a block to paste into an issue."""
    import json

    from nsa_doctor import machine

    form = options.report_format(format, None)
    told = machine.describe(
        options.examined(device=device, config=None, subject=None, input_kind=None, width=None, seed=0, timeout=120.0)
    )
    say(json.dumps(told, indent=2) + "\n" if form == "json" else machine.block(told), sys.stdout)
    return EXIT_CODES[Decision.NO_GO if told["misfits"] else Decision.GO]


@app.command("list")
def list_checks() -> None:
    """Every check with what it detects."""
    from nsa_doctor import registry

    lines = [f"{manual.code}  {manual.name}\n        {manual.detects}" for manual in registry.manuals().values()]
    say("\n".join(lines) + "\n", sys.stdout)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="For example NAN101.")]) -> None:
    """What a check detects, why it matters, and what to do."""
    from nsa_doctor import registry

    try:
        manual = registry.manual(code)
    except ValueError as error:
        raise UsageError(str(error)) from error
    parts = [f"{manual.code} {manual.name}", f"Detects: {manual.detects}", f"Matters: {manual.matters}"]
    say("\n\n".join([*parts, f"Fix: {manual.fix}"]) + "\n", sys.stdout)


def _deliver(report: Report, form: str, output: Path | None, traceback: bool, quiet: bool) -> None:
    """Print the report, and write it to a file when one was named."""
    from nsa_doctor.render import json as as_json
    from nsa_doctor.render import terminal as as_text

    def rendered(form: str, colour: bool) -> str:
        return as_json.render(report) if form == "json" else as_text.render(report, colour=colour, traceback=traceback)

    if output is None:
        say(rendered(form, is_terminal(sys.stdout)), sys.stdout)
        return
    if not quiet:
        say(rendered("terminal", is_terminal(sys.stdout)), sys.stdout)
    write_whole(output, rendered(form, colour=False))


def _check_writable(output: Path) -> None:
    """Refuse before the work what would be lost after it."""
    try:
        check_writable(output)
    except CannotWriteError as error:
        raise UsageError(str(error)) from error


def _complain(sentence: str, code: int) -> int:
    say(f"nsa-doctor: {sentence}\n", sys.stderr)
    return code
