"""The note of what no check sees, for a setting of the subject's own is None or False."""

from collections.abc import Iterator
from pathlib import Path

from nsa_doctor.core.finding import Note
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.text import joined
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.settings_off import settings_off

_MOST_NAMED = 4


def notes_of_settings_off(sp: BuiltModule) -> Iterator[Note]:
    """At most one note, of all of them."""
    found = settings_off(sp.module, FrameFilter(sp.subject.packages))
    named = [f"{each.name}={each.value} ({Path(each.line.file).name}:{each.line.line})" for each in found]
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    if named:
        words = joined([*named[:_MOST_NAMED], *more])
        yield Note(message=f"settings are off, and what they turn on was not examined: {words}")
