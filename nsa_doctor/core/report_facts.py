"""What every report says of the subject, the software and the checkout."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def subject_facts(name: str | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the subject."""
    keys = ("description", "input", "width", "dtype", "options", "identity")
    declared = {"spec": facts["spec"]} if facts.get("spec") else {}
    return {"name": name or facts.get("name", "nsa"), **{key: facts[key] for key in keys if key in facts}, **declared}


def environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of the machine and the software."""
    machine = {
        "nsa_doctor": installed_version("nsa-doctor"),
        "python": platform.python_version(),
        **facts.get("environment", {}),
    }
    return {**machine, "repository": repository()}


def installed_version(name: str) -> str:
    """The version of an installed distribution, which is not imported; "not installed" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:  # the doctor itself in a checkout
        return "not installed"


def repository() -> str:
    """The root of the checkout that the command is given in, or the current folder where there is none."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return ""
    return str(next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here))
