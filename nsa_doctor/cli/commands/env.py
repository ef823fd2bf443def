"""`nsa-doctor env`."""

import sys
from typing import Annotated

import typer

from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import SubjectOptions
from nsa_doctor.core.finding import Decision
from nsa_doctor.core.writing import say


def env(
    device: Annotated[str, typer.Option(help="cpu or cuda: where routes are asked for.")] = "cpu",
    form: Annotated[str | None, typer.Option("--format", help="terminal or json.")] = None,
) -> int:
    """Show versions, devices, flags and routes, for an issue."""
    import json

    from nsa_doctor.engine import machine

    form = options.report_format(form, None, allowed=("terminal", "json"))
    description = machine.describe(options.examined(SubjectOptions(), device=device, seed=0, timeout=120.0))
    say(json.dumps(description, indent=2) + "\n" if form == "json" else machine.block(description), sys.stdout)
    return (Decision.NO_GO if description["misfits"] else Decision.GO).exit_code
