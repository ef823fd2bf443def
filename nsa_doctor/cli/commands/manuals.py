"""`nsa-doctor list` and `nsa-doctor explain`: the checks' manuals, read without importing a check."""

import sys
from textwrap import indent
from typing import Annotated

import typer

from nsa_doctor.cli import completion
from nsa_doctor.core import registry
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.writing import say


def list_checks() -> None:
    """Every check with what it detects."""
    lines = [f"{manual.code}  {manual.name}\n        {manual.detects}" for manual in registry.manuals().values()]
    say("\n".join(lines) + "\n", sys.stdout)


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            help="A code or a name, as `nsa-doctor list` has them; all of them when left out.",
            autocompletion=completion.codes,
        ),
    ] = None,
) -> None:
    """Explain a check: what it detects, why, the fix, an example.

    For example `nsa-doctor explain CODE`.
    """
    if code is None:
        list_checks()
        return
    try:
        manual = registry.manual(code)
    except ValueError as error:
        raise UsageError(str(error)) from error
    parts = [f"{manual.code} {manual.name}", f"Detects: {manual.detects}", f"Matters: {manual.matters}"]
    parts += [f"Fix: {manual.fix}"]
    parts += ["Example:\n" + indent(manual.example, "    ")] if manual.example else []
    parts += [f"Page: {address}"] if (address := address_of(manual.code)) else []
    say("\n\n".join(parts) + "\n", sys.stdout)
