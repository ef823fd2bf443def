"""`nsa-doctor matrix`."""

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.core.conformance import PROPERTY_NAMES
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.nearest import one_of
from nsa_doctor.core.reproduce import SECONDS
from nsa_doctor.core.writing import say, write_whole

if TYPE_CHECKING:
    from nsa_doctor.engine.matrix import Matrix

_MOST_JOBS = 64


def matrix(
    family: Annotated[str, typer.Argument(help="hf: the causal language models of the installed transformers.")],
    types: Annotated[str | None, typer.Option(help="Model types, separated by commas; all if not given.")] = None,
    properties: Annotated[
        str | None,
        typer.Option(help=f"Some of {','.join(PROPERTY_NAMES)}; all if not given."),
    ] = None,
    shard: Annotated[str, typer.Option(help="Which part of the types, as 3/16.")] = "1/1",
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Write a script of plain torch for each red cell.")
    ] = False,
    output: Annotated[
        Path, typer.Option(help="Folder for matrix.md, .html and .json; cells that lie there are kept.")
    ] = Path("matrix_hf"),
    jobs: Annotated[int | None, typer.Option(help="Processes to work in; as many as cores, at most 4.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds one cell may take.")] = SECONDS["matrix"],
    quiet: given.Quiet = False,
) -> int:
    """Measure what must hold of every type of model.

    A type has to give the same logits however it is fed.

    For example `nsa-doctor matrix hf --types llama,bamba --standalone`.
    """
    one_of("matrix", family, ("hf",))
    if jobs is not None and not 1 <= jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs must be from 1 to {_MOST_JOBS}, got {jobs}")
    if not timeout > 0:
        raise UsageError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    from nsa_doctor.cli import progress
    from nsa_doctor.engine.matrix import MatrixRequest, run_matrix
    from nsa_doctor.render.matrix import terminal

    request = MatrixRequest(
        types=_words(types),
        properties=_words(properties),
        shard=_shard(shard),
        folder=output,
        jobs=jobs or min(4, os.cpu_count() or 1),
        seconds=timeout,
    )
    with progress.of_steps(quiet) as listener:
        found = run_matrix(request, listener)
    _write(found, output, has_scripts=standalone)
    say(terminal(found.cells, found.versions), sys.stdout)
    return found.exit_code


def _write(found: "Matrix", folder: Path, *, has_scripts: bool) -> None:
    from nsa_doctor.render.matrix import html, markdown

    write_whole(folder / "matrix.json", json.dumps(found.to_json(), indent=1) + "\n")
    write_whole(folder / "matrix.md", markdown(found.cells, found.versions, found.properties))
    write_whole(folder / "matrix.html", html(found.cells, found.versions, found.properties))
    for cell in found.red if has_scripts else ():
        if cell.script:
            (folder / "standalone").mkdir(exist_ok=True)
            name = re.sub(r"\W+", "_", f"{cell.model.removeprefix('hf:')}_{cell.property_name}")
            write_whole(folder / "standalone" / f"{name}.py", f"# {cell.text}\n# {cell.command}\n{cell.script}")


def _words(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"--shard must be a part of a whole, as 3/16, got {text!r}")
    return int(number), int(count)
