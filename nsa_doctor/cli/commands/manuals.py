"""`nsa-doctor list` and `nsa-doctor explain`: the checks' manuals, read without importing a check."""

import sys
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import Annotated

import typer

from nsa_doctor.cli import completion
from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.writing import is_terminal, say

_WIDEST = 100


def list_checks() -> None:
    """Every check with what it detects."""
    lines = [
        f"{manual.code}  {manual.name}\n{_fitted(manual.detects, ' ' * 8)}" for manual in registry.manuals().values()
    ]
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
    said = {"Detects": manual.detects, "Matters": manual.matters, "Fix": manual.fix}
    parts = [f"{manual.code} {manual.name}", *(_fitted(text, f"{label}: ") for label, text in said.items())]
    parts += ["Example:\n" + indent(manual.example, "    ")] if manual.example else []
    parts += [f"Page: {address}"] if (address := address_of(manual.code)) else []
    return "\n\n".join(parts) + "\n"


def _fitted(text: str, label: str) -> str:
    """The text behind its label; as lines below each other where a person is looking, one that programs read else."""
    if not is_terminal(sys.stdout):
        return label + text
    width = min(get_terminal_size().columns, _WIDEST)
    return fill(label + text, width, subsequent_indent=" " * len(label), break_on_hyphens=False)
