"""Parts that a module is handed and keeps for others, as its source says."""

import inspect
import re

from nsa_doctor.checks._shared.settings_given import is_said_of
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.behaviour.handed_parts import HandedPart

_FOR_OTHERS = re.compile(
    r"\b(callers?|whoever|outside|elsewhere|exporters?|users?)\b|not applied|applied (by|after)|\buses? it\b|by it\b",
    re.IGNORECASE,
)


def is_kept_for_others(handed: HandedPart) -> bool:
    """Whether a line of the holder's class that names it, or one beside that, says who applies it."""
    source = attempt(lambda: inspect.getsource(type(handed.holder)))
    names = (handed.attribute, handed.argument)
    return isinstance(source, str) and any(is_said_of(name, source, _FOR_OTHERS) for name in names)
