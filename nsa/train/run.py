"""One run from its configuration to its last artefact."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa.config import RunConfig
from nsa.data import open_loader
from nsa.train.environment import describe
from nsa.train.failures import RankError, RefusedError, TrainError
from nsa.train.feed import Feed, OpenLoader
from nsa.train.files import write_json
from nsa.train.heartbeat import ENDED
from nsa.train.looks import Looks
from nsa.train.loop import SECONDS_TO_COMPILE, Loop
from nsa.train.moments import load_model_tensors
from nsa.train.monitors import Monitors
from nsa.train.refusal import Refusal
from nsa.train.results import write_results
from nsa.train.saving import History, data_state, restore
from nsa.train.schedule import learning_rate
from nsa.train.setup import Machinery, build, device_of, device_type
from nsa.train.signals import Signals
from nsa.train.start import Start, find_start, held
from nsa.train.tracer import Tracer, installed_tracer
from nsa.train.world import World, forget_reasons, joined, naming_the_dead, say_why


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run that came to its end, as metrics.json tells it."""

    folder: Path
    metrics: dict[str, Any]


def train(
    config: RunConfig,
    *,
    resume: str | None = None,
    tracer: Tracer | None = None,
    loader: OpenLoader = open_loader,
) -> Summary:
    """Train to the last step; raises TrainError, whose sentence and `code` say how it ended otherwise.

    resume: None for a new run, `auto`, a checkpoint's folder, a run's folder, or a file of weights. tracer: who says
    where a value that is not finite was born, with `on_nonfinite: trace`; the installed one if None.
    """
    folder = Path(config.train.out_dir)
    kind = device_type(config)
    if config.train.on_nonfinite == "trace" and tracer is None:
        tracer = installed_tracer()
        if tracer is None:
            raise RefusedError("train.on_nonfinite trace needs a tracer, and none is installed (nsa-doctor brings one)")
    with (
        joined(2 * config.train.watchdog_seconds, kind, config.runtime.context_parallel) as world,
        _telling_others(world, folder),
        naming_the_dead(world, folder),
        ExitStack() as stack,
    ):
        start = _start_together(config, resume, world, stack)
        machinery = build(config, world, device_of(kind, world))
        return _train(_Run(config, world, machinery, start, folder, tracer, loader))


@dataclass(frozen=True)
class _Run:
    config: RunConfig
    world: World
    machinery: Machinery
    start: Start
    folder: Path
    tracer: Tracer | None
    loader: OpenLoader


def _train(run: _Run) -> Summary:
    config, world, start = run.config, run.world, run.start
    position = None if start.snapshot is None else data_state(start.snapshot, world, run.start.msg)
    history = _restored(run)
    with closing(Feed(config, world, position, run.loader)) as feed:
        batches = feed.held_out()
        if world.is_first:
            write_json(run.folder / "env.json", describe(config, world, run.machinery.device, feed.entropy))
        world.wait()
        with Monitors(config, world, run.machinery.device, run.folder, start.step) as monitors:
            for note in start.notes:
                monitors.say(note)
            if config.train.warmup_steps > config.train.steps:
                rate = learning_rate(config.train.steps, config.train)
                monitors.say(
                    f"the warm-up of {config.train.warmup_steps} steps outlasts the run: lr ends at {rate:.2e}"
                )
            monitors.event(start.msg, start.step)
            monitors.say(_opening(run, feed))
            with _end_logged(monitors), _signals(monitors, config) as signals:
                looks = Looks(run.machinery, world, monitors, batches, decode=_decoder(config))
                refusal = Refusal(run.machinery, world, monitors, run.folder, run.tracer)
                loop = Loop(run.machinery, feed, world, monitors, looks, signals, refusal, run.folder, history)
                if start.step == 0:
                    monitors.enter("the first look", 0, SECONDS_TO_COMPILE if config.runtime.compile else None)
                    looks.at_gates(0)
                    looks.at_held_out(0, history)
                loop.run(start.step + 1)
                monitors.enter("writing the results", config.train.steps)
                metrics = write_results(
                    run.folder,
                    run.machinery,
                    world,
                    history,
                    entropy=feed.entropy,
                    oracle_loss=feed.oracle_loss(batches),
                )
                monitors.event("finished", config.train.steps)
                monitors.say(f"finished: {_closing(metrics)}; in {run.folder}")
    return Summary(folder=run.folder, metrics=metrics)


def _start_together(config: RunConfig, resume: str | None, world: World, stack: ExitStack) -> Start:
    """The first process decides, so that what it refuses is refused by all, and all read the same checkpoint."""
    folder, found, refusal = Path(config.train.out_dir), Start(), ""
    if world.is_first:
        try:
            if folder.exists() or resume is not None:
                found = find_start(config, resume)
            stack.enter_context(held(folder))
        except TrainError as error:
            refusal = str(error)
            if world.size == 1:
                raise
    first = world.gather_objects((refusal, found.msg, found.notes, found.step))[0]
    if first[0]:
        raise RefusedError(first[0])
    forget_reasons(folder, world.rank)
    if not world.is_first and resume is not None:
        found = find_start(config, resume)
    world.wait()  # the first process writes nothing while the others still look
    return found


def _restored(run: _Run) -> History:
    """What the run has been through; puts weights, optimizer and generators in place."""
    if run.start.snapshot is not None:
        return restore(run.start.snapshot, run.machinery, run.world, run.start.msg.removeprefix("resumed from "))
    if run.start.weights is not None:
        try:
            load_model_tensors(run.machinery.model, run.start.weights)
        except ValueError as error:
            raise RefusedError(f"--resume: the file of weights {error}") from error
    return History()


@contextmanager
def _telling_others(world: World, folder: Path) -> Iterator[None]:
    """Leave word of why this process ends."""
    try:
        yield
    except BaseException as error:
        if world.size > 1 and not isinstance(error, RankError):  # which is of another's end, or known to all
            say_why(folder, world.rank, str(error) or type(error).__name__)
        raise


@contextmanager
def _end_logged(monitors: Monitors) -> Iterator[None]:
    """The heartbeat's last line says why."""
    try:
        yield
    except BaseException as error:
        _try_to_tell(monitors, f"{ENDED}{str(error) or type(error).__name__}")
        raise


def _try_to_tell(monitors: Monitors, msg: str) -> None:
    try:
        monitors.event(msg)
    except TrainError:
        return  # the disk is what ended the run


@contextmanager
def _signals(monitors: Monitors, config: RunConfig) -> Iterator[Signals]:
    def answer(number: Any) -> None:
        path = monitors.stacks(f"received {number.name}")
        _try_to_tell(monitors, f"received {number.name}; stacks in {path.name if path else 'no file'}")

    with Signals(answer, config.train.watchdog_seconds) as signals:
        yield signals


def _opening(run: _Run, feed: Feed) -> str:
    model, where = run.machinery.model, run.machinery.device
    size = sum(parameter.numel() for parameter in model.parameters())
    processes = "" if run.world.size == 1 else f", {run.world.size} processes ({run.config.runtime.distributed})"
    if run.world.context_size > 1:
        processes += f", {run.world.context_size} to a row"
    entropy = "" if feed.entropy is None else f" (entropy {feed.entropy:.4f} nats)"
    return f"{size:,} parameters on {where.type}{processes}, {feed.description}{entropy}: {run.start.msg}"


def _closing(metrics: dict[str, Any]) -> str:
    parts = [f"{metrics['steps']} steps"]
    for name, label in (("final_loss", "loss"), ("final_held_out_loss", "held-out loss")):
        if metrics[name] is not None:
            parts.append(f"{label} {metrics[name]:.4f}")
    return ", ".join(parts)


def _decoder(config: RunConfig) -> Callable[[Sequence[int]], str]:
    """Bytes as text; ids of another tokenizer stay ids alone."""
    if config.data.tokenizer != "byte":
        return lambda ids: ""
    return lambda ids: bytes(each for each in ids if each < 256).decode("utf-8", errors="replace")
