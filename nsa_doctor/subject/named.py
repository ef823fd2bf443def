"""Imports what the user names as package.module:name."""

import importlib
import sys
from pathlib import Path
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.own_nsa import let_theirs_win
from nsa_doctor.subject.contract import SubjectUnusableError


def import_named(spec: str, option: str = "subject") -> Any:
    """What `package.module:name` names, looked for in the current folder too.

    Raises SubjectUnusableError, which names the option, where there is none.
    """
    name, _, path = spec.partition(":")
    here = str(Path.cwd())
    sys.path[:] = [here, *(place for place in sys.path if place != here)]
    if name.partition(".")[0] != "nsa_doctor":  # our own subjects are made of our own nsa
        let_theirs_win()
    module = attempt(lambda: importlib.import_module(name))
    if isinstance(module, Caught):
        raise SubjectUnusableError(f"{option} {spec} cannot be imported: {module.sentence}") from module.error
    factory: Any = module
    for part in path.split("."):
        if not hasattr(factory, part):
            raise SubjectUnusableError(f"{option} {spec} cannot be imported: {name} has no {path}")
        factory = getattr(factory, part)
    return factory
