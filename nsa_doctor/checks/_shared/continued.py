"""The finding about steps behind a cache that was changed by hand."""

from collections.abc import Callable
from typing import Any

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.changed_cache import Continued
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.built_module import BuiltModule


def continued_finding(
    sp: BuiltModule, code: str, change: Callable[..., Any], words: str, found: Continued, than: str
) -> Finding:
    """At the method that changes it: in which words the steps depart, and the field that is other `than` it should."""
    field = f"; {found.field} is other than {than}" if found.field else ""
    return Finding(
        message=f"{words}, {found.departure.text}{field}",
        where=callable_place(change, sp.module),
        evidence={"field": found.field, "error": found.departure.error, "floor": found.departure.floor},
        repro=command_for(sp.subject, code),
    )
