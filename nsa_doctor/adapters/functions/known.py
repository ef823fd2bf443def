"""The conventions by name, and the one that a command line means."""

from nsa_doctor.adapters.functions import flash, flash_kvcache, flash_varlen, flex, hf, sdpa
from nsa_doctor.core.function_spec import FunctionSpec
from nsa_doctor.core.like import CONVENTIONS
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.function import Convention

_KNOWN = {each.CONVENTION.name: each.CONVENTION for each in (sdpa, flash, flash_varlen, flash_kvcache, flex, hf)}
assert tuple(_KNOWN) == CONVENTIONS


def convention(name: str, spec: FunctionSpec) -> Convention:
    """The convention; SubjectUnusableError where the spec asks for what it has no way to say."""
    found = _KNOWN[name]
    for word, why in found.refuses.items():
        if word in {each.partition("=")[0] for each in spec.words}:
            raise SubjectUnusableError(f"--spec {word} cannot be said under --like {name}: {why}")
    return found
