"""`nsa-doctor list` and `nsa-doctor explain`: the checks' manuals, read without importing a check."""

import sys
from textwrap import indent
from typing import Annotated

import typer

from nsa_doctor.cli import completion
from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.writing import say


def list_checks() -> None:
    """Every check with what it detects."""
    lines = [f"{manual.code}  {manual.name}\n        {manual.detects}" for manual in registry.manuals().values()]
    say("\n".join(lines) + "\n", sys.stdout)


def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE]...",
            help="Codes or names, as `nsa-doctor list` has them; all of them when left out.",
            autocompletion=completion.codes,
        ),
    ] = None,
) -> None:
    """Explain checks: what each detects, why, the fix, an example.

    For example `nsa-doctor explain CODE`.
    """
    if not codes:
        list_checks()
        return
    try:
        manuals = [registry.manual(code) for code in codes]
    except ValueError as error:
        raise UsageError(str(error)) from error
    say("\n".join(map(_explained, manuals)), sys.stdout)


def _explained(manual: Manual) -> str:
    parts = [f"{manual.code} {manual.name}", f"Detects: {manual.detects}", f"Matters: {manual.matters}"]
    parts += [f"Fix: {manual.fix}"]
    parts += ["Example:\n" + indent(manual.example, "    ")] if manual.example else []
    parts += [f"Page: {address}"] if (address := address_of(manual.code)) else []
    return "\n\n".join(parts) + "\n"
