"""`nsa_doctor.examine`: what `nsa-doctor run` does, from Python."""

import ast
import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints
from unittest.mock import patch

from nsa_doctor.cli import options, progress
from nsa_doctor.cli.notebook_cells import cell_names, in_cells
from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions
from nsa_doctor.cli.search_path import paths_inherited
from nsa_doctor.core import handed_over
from nsa_doctor.core.errors import OptionError, UsageError
from nsa_doctor.core.examination_request import COMPILE_SECONDS
from nsa_doctor.core.finding import Decision, Finding, Report, Result
from nsa_doctor.core.like import FUNCTION
from nsa_doctor.core.measurement import Census, Point
from nsa_doctor.core.reproduce import SECONDS
from nsa_doctor.isolation.start import Children

if TYPE_CHECKING:
    from pandas import DataFrame

    from nsa_doctor.engine.run import RunRequest

_OF_ANY_TYPE = ("subject", "train", "return")


class NoGoError(AssertionError):
    """What was examined is not a GO; the message is the report as a terminal shows it."""


@dataclass(frozen=True)
class Examination:
    """What an examination found out; as the last value of a notebook's cell it is shown as a page."""

    report: Report

    @property
    def verdict(self) -> Decision:
        """GO, NO-GO or UNKNOWN."""
        return self.report.decision

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding: `code`, `message`, `module`, `file`, `line`, `evidence`, and `reproduce`, its command."""
        return self.report.findings

    def to_html(self) -> str:
        """The report as a page of its own."""
        from nsa_doctor.render.formats import render_as

        return render_as(self.report, "html")

    def to_json(self) -> str:
        """The report as `nsa-doctor run --format json` writes it."""
        from nsa_doctor.render.formats import render_as

        return render_as(self.report, "json")

    def to_frame(self) -> "DataFrame":
        """The sweep as a pandas.DataFrame, a row a length, dtype, mode and tensor; ImportError without pandas.

        Its columns are the same where no sweep ran, and there are no rows.
        """
        columns = [field.name for record in (Point, Census) for field in fields(record)]
        rows = [
            {**asdict(each.point), **asdict(census), "seconds": each.seconds, "peak_bytes": each.peak_bytes}
            for each in self.report.measurements
            for census in each.censuses
        ]
        return importlib.import_module("pandas").DataFrame(rows, columns=[*columns, "seconds", "peak_bytes"])

    def raise_if_no_go(self) -> None:
        """Raise NoGoError unless the verdict is GO."""
        if self.verdict is not Decision.GO:
            raise NoGoError(f"{self.verdict.value}\n\n{self}")

    def __repr__(self) -> str:
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.findings))
        found = f"findings of {codes}" if codes else "no finding"
        return f"<Examination of {self.report.subject.get('name', 'a subject')}: {self.verdict.value}, {found}>"

    def __str__(self) -> str:
        from nsa_doctor.render.formats import render_as

        return render_as(self.report, "terminal")

    def _repr_html_(self) -> str:
        from html import escape

        return f'<iframe srcdoc="{escape(self.to_html())}" style="width: 100%; height: 40em; border: 0"></iframe>'


def examine(
    subject: Any,
    *,
    profile: str = "quick",
    spec: str | None = None,
    like: str | None = None,
    reference: str | None = None,
    inputs: str | None = None,
    train: str | Callable[..., Any] | None = None,
    select: str | None = None,
    ignore: str | None = None,
    input: str | None = None,
    width: int | None = None,
    size: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    timeout: float = SECONDS["run"],
    compile_timeout: float = COMPILE_SECONDS,
    jobs: int | None = None,
    fail_fast: bool = False,
    quiet: bool = False,
) -> Examination:
    """Examine a module, or with `like` an attention function, as `nsa-doctor run` does, in processes of its own.

    subject: a class or a function that returns an `nn.Module`, an `Adapter` or a `Subject`; a module, of which copies
    are examined; with `like` the function itself; or the text that `--subject` takes. The other arguments are options
    of the command, the two time-outs in seconds; `train` may be the step itself, where it can be imported by name.

    What can be imported by name is imported in new processes; a script that calls this needs `if __name__ ==
    "__main__":` around the call, as they import it too. Lambdas, cells of a notebook, modules and what is defined under
    that guard are handed to forks of this process instead, which one that has used a GPU has none of.

    Raises UsageError or OptionError, both ValueErrors, for what cannot be examined at all.
    """
    _require_types(vars())
    _require_no_examination_around()
    words, given = _named(subject, is_function=like is not None)
    request = options.examined(
        SubjectOptions(subject=words, input_kind=input, width=width, spec=spec, train=_step(train), size=size),
        device=device,
        seed=seed,
        timeout=timeout,
        compile_timeout=compile_timeout,
        dtype=dtype,
        profile=profile,
        function=FunctionOptions(like=like, reference=reference, inputs=inputs),
    )
    run_request = options.run_request(
        examination_request=request, select=select, ignore=ignore, jobs=jobs, fail_fast=fail_fast
    )
    run_request = run_request if given is None else _on_one_thread(run_request)
    from nsa_doctor.engine import run as running

    with given or paths_inherited(), progress.of_steps(quiet) as listener:
        try:
            report = running.run(run_request, listener)
        except UsageError as error:
            raise UsageError(_with_own_name(str(error), subject)) from None
    return Examination(report if given is None else _called_by_value(report, subject))


def _on_one_thread(request: "RunRequest") -> "RunRequest":
    """Threads of OpenMP are not forked."""
    return replace(request, examination_request=replace(request.examination_request, threads=1))


def _called_by_value(report: Report, subject: Any) -> Report:
    """The report of what has no name: it is called as it is here, and examined again from here."""
    cells = cell_names({finding.where.file for finding in report.findings})

    def named(text: str) -> str:
        return in_cells(_with_own_name(text, subject), cells)

    def again(finding: Finding) -> Finding:
        repro = f'nsa_doctor.examine(…, select="{finding.code}")' if finding.code else ""
        where = replace(finding.where, file=cells.get(finding.where.file, finding.where.file))
        return replace(finding, message=named(finding.message), where=where, repro=repro)

    def renamed(result: Result) -> Result:
        findings, notes = tuple(map(again, result.findings)), tuple(map(named, result.notes))
        return replace(result, findings=findings, notes=notes, reason=named(result.reason))

    facts = {key: named(value) if isinstance(value, str) else value for key, value in report.subject.items()}
    facts["options"] = []  # no command line names it
    results, notes = tuple(map(renamed, report.results)), tuple(map(named, report.notes))
    return replace(report, command="examine", subject=facts, results=results, notes=notes)


def _with_own_name(text: str, subject: Any) -> str:
    """The text with the name by which the caller knows the subject."""
    bare = handed_over.NAME.rpartition(":")[2]
    return text.replace(handed_over.NAME, _shown(subject)).replace(f" {bare}(…)", f" {_shown(subject)}(…)")


def _require_types(words: dict[str, Any]) -> None:
    """Raise OptionError for an argument that is not of the type it is annotated with; a whole number may be numpy's."""
    for name, hint in get_type_hints(examine).items():
        if name in _OF_ANY_TYPE:
            continue
        value, types = words[name], get_args(hint) or (hint,)
        is_number = hasattr(value, "__index__") and not isinstance(value, bool) and not {int, float}.isdisjoint(types)
        if not (is_number or (isinstance(value, types) and isinstance(value, bool) == (bool in types))):
            allowed = " or ".join(each.__name__.removesuffix("Type") for each in types)
            raise OptionError(f"{name} must be {allowed}, got {value!r}")


def _step(train: str | Callable[..., Any] | None) -> str | None:
    if train is None or isinstance(train, str):
        return train
    if (name := _importable_name(train)) is None:
        raise UsageError("train must be package.module:function, or a function that can be imported by its name")
    return name


def _shown(subject: Any) -> str:
    return str(getattr(subject, "__qualname__", type(subject).__qualname__))


def _require_no_examination_around() -> None:
    if "nsa_doctor.worker.main" in sys.modules and not Children.are_forked:
        raise UsageError(
            'examine() was called while what it examines was imported: put the call under if __name__ == "__main__":'
        )


def _named(subject: Any, *, is_function: bool) -> tuple[str, AbstractContextManager[None] | None]:
    """The words of --subject, and in what they hold where nothing that can be imported has them."""
    prefix = FUNCTION if is_function else ""
    if isinstance(subject, str):
        return subject, None
    if (name := _importable_name(subject)) is not None:
        return prefix + name, None
    value = subject if callable(subject) and not _is_module(subject) else lambda: copy.deepcopy(subject)
    return prefix + handed_over.NAME, _in_forks(value)


def _is_module(subject: Any) -> bool:
    torch = sys.modules.get("torch")  # without it there are no modules
    return torch is not None and isinstance(subject, torch.nn.Module)


def _importable_name(subject: Any) -> str | None:
    """`package.module:name` of a class or function that a new process can import; None where there is none."""
    module, name = getattr(subject, "__module__", None), getattr(subject, "__qualname__", None)
    if module is None or name is None or "<" in name:
        return None
    home = _module_name(sys.modules.get(module))
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if home is None or found is not subject or _is_guarded(sys.modules[module], name.split(".")[0]):
        return None
    return f"{home}:{name}"


def _is_guarded(module: ModuleType, name: str) -> bool:
    """Whether a program defines the name under its `if __name__ == "__main__":`, which nobody who imports it runs."""
    if module.__name__ != "__main__":
        return False
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, SyntaxError):  # what is imported then says so
        return False
    guards = [each for each in tree.body if isinstance(each, ast.If) and "__name__" in ast.unparse(each.test)]
    return any(getattr(node, "name", "") == name for guard in guards for node in ast.walk(guard))


def _module_name(module: ModuleType | None) -> str | None:
    """By which name another process imports the module: a script goes by its file's."""
    if module is None or module.__name__ != "__main__":
        return None if module is None else module.__name__
    if module.__spec__ is not None:  # python -m
        return module.__spec__.name
    file = getattr(module, "__file__", None)
    stem = "" if file is None else Path(file).stem
    return stem if stem.isidentifier() and Path(str(file)).suffix == ".py" else None


@contextmanager
def _in_forks(value: Callable[..., Any]) -> Iterator[None]:
    """The value is handed to processes that are forked meanwhile. Raises UsageError where none may be."""
    torch = sys.modules.get("torch")
    if (torch is not None and torch.cuda.is_initialized()) or not hasattr(os, "fork"):
        raise UsageError(
            "this has no name that another process can import it by, and this process cannot be forked (it has used a "
            "GPU): write what builds it into a file, import it from there and examine that"
        )
    with handed_over.handed_over(value), patch.object(Children, "are_forked", new=True):
        yield
