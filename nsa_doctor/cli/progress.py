"""What is going on: a bar on a terminal, one line that is replaced in a notebook, plain lines elsewhere, or nothing."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsa_doctor.core.measurement import MODES, Diagnosis, Measurement
from nsa_doctor.core.writing import is_terminal, say
from nsa_doctor.engine.sweep import Listener

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress(quiet: bool) -> Iterator[Listener]:
    """A listener for `sweep`, for as long as it runs."""
    if quiet:
        yield lambda stage, total, answer: None
    elif is_terminal(sys.stderr):
        with _bar() as listener:
            yield listener
    else:
        yield _plain


@contextmanager
def of_steps(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A listener for work in steps, which receives what was done, how many steps are done and of how many."""
    if quiet:
        yield lambda text, done, total: None
    elif _is_notebook():
        yield _notebook_line()
    elif is_terminal(sys.stderr):
        with _steps_bar() as listener:
            yield listener
    else:
        yield _plain_steps


def _plain_steps(text: str, done: int, total: int) -> None:
    """A line for each step, but for checks that have nothing to look at."""
    if not text.endswith("not applicable"):
        say(f"{done}/{total} {text}\n", sys.stderr)


def _is_notebook() -> bool:
    """Whether a kernel of IPython runs this process."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def _notebook_line() -> Callable[[str, int, int], None]:
    show = importlib.import_module("IPython.display").display
    line = show({"text/plain": "starting"}, raw=True, display_id=True)
    return lambda text, done, total: line.update({"text/plain": f"{done}/{total} {text}"}, raw=True)


@contextmanager
def _steps_bar() -> Iterator[Callable[[str, int, int], None]]:
    with _progress() as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text, done, total: bar.update(task, total=total, completed=done, description=text)


@contextmanager
def _bar() -> Iterator[Listener]:
    with _progress() as bar:
        task = bar.add_task("starting", total=None)

        def listen(stage: str, total: int, answer: Measurement | Diagnosis) -> None:
            point = answer.point
            bar.update(
                task,
                total=total,
                advance=1 if stage == "measured" else 0,
                description=f"{stage} S={point.length} {point.dtype} {point.mode}",
            )

        yield listen


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _plain(stage: str, total: int, answer: Measurement | Diagnosis) -> None:
    """One line per length, and one per mode that is not as it should be."""
    point = answer.point
    if isinstance(answer, Diagnosis) or stage != "measured":
        say(f"{stage}: S={point.length} {point.dtype} {point.mode}\n", sys.stderr)
        return
    if answer.is_finite and point.mode != MODES[-1]:
        return
    seconds = f", {answer.seconds:.2f} s" if answer.seconds is not None else ""
    if answer.trouble is not None:
        state = answer.trouble.kind.replace("_", " ")
    else:
        state = "finite" if answer.is_finite else "not finite"
    say(f"measured: S={point.length} {point.dtype} {point.mode}: {state}{seconds}\n", sys.stderr)
