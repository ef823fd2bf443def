"""Whether a checkpoint is one of the subject: every parameter is there, under its name and with its shape."""

from collections.abc import Iterator, Mapping

from nsa_doctor.artifacts.checkpoint.record import Reading

_MOST_NAMED = 3
Shape = tuple[int, ...]


def misfits(reading: Reading, parameters: Mapping[str, Shape], subject: str) -> Iterator[str]:
    """One sentence where it is another model's; a larger model that holds the subject, layer by layer, is none.

    `parameters` are the subject's by name: a tensor whose name ends in one, at a dot, is a copy of it.
    """
    by_ending: dict[str, list[Shape]] = {name: [] for name in parameters}
    for name, shape in reading.shapes.items():
        parts = name.split(".")
        for start in range(len(parts)):
            if (ending := ".".join(parts[start:])) in by_ending:
                by_ending[ending].append(shape)
    missing = [name for name, found in by_ending.items() if not found]
    other = [name for name, found in by_ending.items() if found and set(found) != {tuple(parameters[name])}]
    faults = [f"{name} is {list(next(iter(by_ending[name])))} and not {list(parameters[name])}" for name in other]
    faults += [f"{name} is not there" for name in missing]
    if faults:
        more = f" and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
        yield f"{reading.path} is a checkpoint of another model than {subject}: {', '.join(faults[:_MOST_NAMED])}{more}"
