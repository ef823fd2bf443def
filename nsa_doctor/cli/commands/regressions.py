"""`nsa-doctor regressions`."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cases.catalogue import Card, cards, folders
from nsa_doctor.cli import option_types as given
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.reproduce import SECONDS, reproduce
from nsa_doctor.core.writing import is_terminal, say

_MOST_JOBS = 64


def regressions(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="r007; or: new NAME-OF-THE-SYMPTOM.")
    ] = None,
    planted: Annotated[bool, typer.Option("--planted", help="Show each planted bug as the doctor sees it.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes to work in; as many as cores, at most 4.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds one case may take.")] = SECONDS["regressions"],
    form: Annotated[
        str, typer.Option("--format", help="terminal, json, or md: the table alone, nothing is run.")
    ] = "terminal",
    quiet: given.Quiet = False,
) -> int:
    """Show that reported bugs are absent, and found if injected.

    For example `nsa-doctor regressions r007 --planted`.
    """
    if jobs is not None and not 1 <= jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs must be from 1 to {_MOST_JOBS}, got {jobs}")
    if not timeout > 0:
        raise UsageError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    known = _known()
    if ids and ids[0] == "new":
        return _new(ids[1:], known)
    chosen = _chosen(ids or [], known)
    if form == "md":
        from nsa_doctor.cases.table import markdown

        say(markdown(chosen), sys.stdout)
        return 0
    if form not in ("terminal", "json"):
        raise UsageError(f"--format must be terminal, json or md, got {form!r}")
    from nsa_doctor.cases.running import CasesRequest, run_cases
    from nsa_doctor.cases.table import terminal
    from nsa_doctor.cli import progress

    request = CasesRequest(cards=tuple(chosen), jobs=jobs or min(4, os.cpu_count() or 1), seconds=timeout)
    with progress.of_steps(quiet) as listener:
        outcomes = run_cases(request, listener)
    if form == "json":
        say(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", sys.stdout)
    else:
        say(terminal(chosen, outcomes, shows_sights=planted, colour=is_terminal(sys.stdout)), sys.stdout)
    return 1 if any(outcome.status not in ("absent", "skipped") for outcome in outcomes) else 0


def _known() -> dict[str, Card]:
    try:
        known = cards()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not known:
        raise UsageError("no package offers regression cases (entry point group nsa_doctor.regressions)")
    return known


def _chosen(ids: list[str], known: dict[str, Card]) -> list[Card]:
    for each in ids:
        if each.lower() not in known:
            raise UsageError(f"there is no case {each!r}; cases are {', '.join(known)}")
    return [known[each.lower()] for each in ids] or list(known.values())


def _new(words: list[str], known: dict[str, Card]) -> int:
    from nsa_doctor.cases.skeleton import write_skeleton

    if len(words) != 1:
        raise UsageError("new takes one name, the symptom, as in: nsa-doctor regressions new range-walk-hangs")
    try:
        path = write_skeleton(folders()[0], words[0], list(known))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from error
    say(f"{Path(path)}: fill it in, then {reproduce('regressions', (path.stem[:4],), planted=True)}\n", sys.stdout)
    return 0
