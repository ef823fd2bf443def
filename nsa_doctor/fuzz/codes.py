"""Which check a property belongs to: fuzzing finds inputs, the checks' manuals say what they mean."""

from collections.abc import Container

from nsa_doctor.fuzz.cases import Target

# What the name of a property holds: the code it has. The first that fits counts.
_OF_PROPERTY = {
    "hangs": "HNG101",
    "dies": "HNG101",
    "raises": "FWD101",
    "valid refused": "FWD101",
    "wrong shape": "FWD102",
    "gradient not finite": "NAN102",
    "not finite on some values": "NAN104",
    "gradient of": "GRD101",
    "not finite": "NAN101",
    "argument written": "FWD208",
    "future changes output": "FWD201",
    "prefix differs": "FWD202",
    "row alone differs": "FWD204",
    "depends on strides": "FWD205",
    "two calls differ": "FWD206",
    "out of bounds": "SEL101",
    "invalid accepted": "SEL101",
    "unsorted": "SEL103",
    "duplicate": "SEL104",
    "forced block missing": "SEL105",
    "too many": "SEL106",
    "future block": "SEL107",
    "tie to the higher index": "SEL109",
    "not the best by score": "SEL110",
    "too few": "SEL110",
    "depends on other": "SEL111",
    "gradient reaches": "GRD103",
    "reads what it may not": "FWD303",
    "read what it may": "FWD303",
    "do not sum to one": "FWD301",
    "differs from dense": "FWD301",
    "slots not held": "FWD307",
}
_OF_TARGET = {"ranges": "SEL104", "masks": "FWD303", "select": "SEL110", "attend": "FWD301", "forward": "FWD301"}
_ALWAYS_THERE = "FWD101"


def code_of(target: Target, property: str, known: Container[str]) -> str:
    """The code of a property of a target, among the codes there are."""
    for part, code in _OF_PROPERTY.items():
        if part in property and code in known:
            return code
    code = _OF_TARGET[target]
    return code if code in known else _ALWAYS_THERE


def named() -> set[str]:
    """Every code a finding may bear."""
    return {*_OF_PROPERTY.values(), *_OF_TARGET.values(), _ALWAYS_THERE}
