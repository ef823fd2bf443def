"""A new case to fill in: it fails until somebody has."""

import keyword
import re
from pathlib import Path

from nsa_doctor.core import registry
from nsa_doctor.core.facts import Violation

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TEXT = '''"""{id} {name}

Reported: by whom, where, and with which configuration.
Symptom: what was seen, in the words of who saw it.
Cause: what was established, and how; what is a guess is called one.
Check: the code of the check that has to name it.
"""

from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant


def reproduce() -> None:
    raise NotImplementedError("run the code that ships, and assert that the bug is absent")


def planted() -> object:
    raise NotImplementedError("return faulty_layer({{...}}): the layer, with names of nsa replaced as reported")


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="as reported",
            command=examine(f"{{__name__}}:planted", "{code}"),
            expected=found("{code}", file="{module}.py"),
        ),
    ),
)
'''


def write_skeleton(folder: Path, name: str, ids: list[str]) -> Path:
    """The file of a new case with the id after those known; raises ValueError for a name that cannot be one."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ValueError(
            f"a case's name is its symptom in words and hyphens, such as range-iteration-hang, got {name!r}"
        )
    number = max((int(each[1:]) for each in ids), default=0) + 1
    module = f"r{number:03d}_{name.replace('-', '_')}"
    path = folder / f"{module}.py"
    example = registry.fuzzed(Violation.FUTURE_CHANGES_OUTPUT).manual.code
    text = _TEXT.format(id=module[:4], name=name, module=module, code=example)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
